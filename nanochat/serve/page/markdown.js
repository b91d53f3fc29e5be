// Markdown to DOM nodes. Text only ever becomes text nodes: no markup of the model is parsed as HTML, no attribute holds its
// words but a link's address, and that only for http, https and mailto.

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const MAX_DEPTH = 8;

function element(name, children = [], properties = {}) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

const INLINE = [
  [/^(`+)(?!`)([\s\S]*?[^`])\1(?!`)/, (m) => element("code", [m[2].trim() || m[2]])],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, (m, d) => element("strong", inline(m[1], d))],
  [/^\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)/, (m, d) => element("em", inline(m[1], d))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m, d) => element("del", inline(m[1], d))],
  [/^\[([^\]\n]{1,300})\]\(([^\s()<>]{1,2000})\)/, (m, d) => link(m[2], inline(m[1], d), m[0])],
  [/^https?:\/\/[^\s<>()"']{1,2000}[^\s<>()"'.,;:!?。，、]/, (m) => link(m[0], [m[0]], m[0])],
];

function link(address, children, source) {
  if (!SAFE_LINK.test(address)) return document.createTextNode(source);
  return element("a", children, { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
}

function inline(source, depth = 0) {
  if (depth > MAX_DEPTH) return [source];
  const nodes = [];
  let plain = "";
  const flush = () => { if (plain) nodes.push(document.createTextNode(plain)); plain = ""; };
  for (let at = 0; at < source.length;) {
    const rest = source.slice(at, at + 4000);
    if (rest[0] === "\\" && /[\\`*_~[\]()#+\-.!]/.test(rest[1] ?? "")) { plain += rest[1]; at += 2; continue; }
    const hit = /[`*~[h]/.test(rest[0]) && INLINE.map(([pattern, build]) => [pattern.exec(rest), build]).find(([match]) => match);
    if (hit) { flush(); nodes.push(hit[1](hit[0], depth + 1)); at += hit[0][0].length; continue; }
    if (rest[0] === "\n") { flush(); nodes.push(document.createElement("br")); at += 1; continue; }
    plain += rest[0];
    at += 1;
  }
  flush();
  return nodes;
}

function codeBlock(language, lines, copyLabel) {
  const code = lines.join("\n");
  const copy = element("button", [copyLabel], { type: "button", className: "copy-code" });
  copy.dataset.code = code;
  return element("div", [element("header", [element("span", [language || "text"]), copy]), element("pre", [element("code", [code])])], { className: "block" });
}

function list(lines, at, depth, copyLabel) {
  const first = /^(\s*)([-*+]|\d{1,9}[.)])\s+/.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const node = element(ordered ? "ol" : "ul");
  if (ordered && parseInt(first[2], 10) !== 1) node.start = parseInt(first[2], 10);
  while (at < lines.length) {
    const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/.exec(lines[at]);
    if (!item || item[1].length !== first[1].length || /\d/.test(item[2]) !== ordered) break;
    const inner = [item[3]];
    at += 1;
    while (at < lines.length && (/^\s*$/.test(lines[at]) ? /^\s{2,}\S/.test(lines[at + 1] ?? "") : lines[at].length - lines[at].trimStart().length > first[1].length)) {
      inner.push(lines[at].slice(Math.min(lines[at].length, first[1].length + 2)));
      at += 1;
    }
    node.append(element("li", inner.length === 1 ? inline(inner[0]) : blocks(inner, depth + 1, copyLabel)));
  }
  return [node, at];
}

function row(line) { return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim()); }

function table(lines, at) {
  const head = element("tr", row(lines[at]).map((cell) => element("th", inline(cell))));
  const body = [];
  for (at += 2; at < lines.length && lines[at].includes("|") && lines[at].trim(); at += 1) {
    body.push(element("tr", row(lines[at]).map((cell) => element("td", inline(cell)))));
  }
  return [element("table", [element("thead", [head]), element("tbody", body)]), at];
}

function blocks(lines, depth, copyLabel) {
  if (depth > MAX_DEPTH) return [element("p", [lines.join("\n")])];
  const nodes = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (!line.trim()) { at += 1; continue; }
    if (fence) {
      const inner = [];
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) inner.push(lines[at]);
      nodes.push(codeBlock(fence[2], inner, copyLabel));
      at += 1;
    } else if (heading) {
      nodes.push(element(`h${Math.min(5, heading[1].length + 2)}`, inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])\s*(\1\s*){2,}$/.test(line)) {
      nodes.push(element("hr"));
      at += 1;
    } else if (/^\s*([-*+]|\d{1,9}[.)])\s+/.test(line)) {
      const [node, next] = list(lines, at, depth, copyLabel);
      nodes.push(node);
      at = next;
    } else if (/^\s*>/.test(line)) {
      const inner = [];
      for (; at < lines.length && /^\s*>/.test(lines[at]); at += 1) inner.push(lines[at].replace(/^\s*> ?/, ""));
      nodes.push(element("blockquote", blocks(inner, depth + 1, copyLabel)));
    } else if (line.includes("|") && /^\s*\|?[\s:|-]*-[\s:|-]*\|?\s*$/.test(lines[at + 1] ?? "")) {
      const [node, next] = table(lines, at);
      nodes.push(node);
      at = next;
    } else {
      const inner = [line];
      for (at += 1; at < lines.length && lines[at].trim() && !/^(\s{0,3}(`{3,}|~{3,})|#{1,6}\s|\s*>|\s*([-*+]|\d{1,9}[.)])\s+)/.test(lines[at]); at += 1) inner.push(lines[at]);
      nodes.push(element("p", inline(inner.join("\n"))));
    }
  }
  return nodes;
}

export function markdown(source, copyLabel = "Copy") {
  return blocks(source.replace(/\r\n?/g, "\n").split("\n"), 0, copyLabel);
}
