"""How an estimate is shown: sections for people, values for JSON, tables of several plans, explanations."""
