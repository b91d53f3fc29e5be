"""Currencies that a price may have."""

__all__ = ["CURRENCIES", "CURRENCY_NAMES"]

CURRENCIES = frozenset(
    ["AED", "ARS", "AUD", "BRL", "CAD", "CHF", "CLP", "CNY", "CZK", "DKK", "EGP", "EUR", "GBP", "HKD", "HUF", "IDR", "ILS", "INR", "JPY", "KRW", "KZT", "MOP", "MXN", "MYR", "NOK", "NZD", "PHP", "PLN", "RON", "RUB", "SAR", "SEK", "SGD", "THB", "TRY", "TWD", "UAH", "USD", "VND", "ZAR"]
)
"""ISO 4217 codes that a price may have. Nothing is converted."""

CURRENCY_NAMES = {"RMB": "CNY", "CNH": "CNY", "YUAN": "CNY", "¥": "CNY", "￥": "CNY", "元": "CNY", "人民币": "CNY", "$": "USD", "€": "EUR"}
"""What people call a currency, in capitals -> its code; for hints only, since a sign may mean several."""
