// Texts of the page, English and Chinese side by side, so that one is never changed without the other.
const TEXTS = {
  new: ["New conversation", "新对话"],
  conversations: ["Conversations", "对话列表"],
  close: ["Close", "关闭"],
  settings: ["Settings", "设置"],
  theme: ["Light or dark", "明暗主题"],
  language: ["Language", "语言"],
  send: ["Send", "发送"],
  stop: ["Stop", "停止"],
  ask: ["Ask something", "想问点什么？"],
  hello: ["What shall we talk about?", "聊点什么？"],
  helloMore: ["A small model, trained by you. It is often wrong.", "这是你自己训练的小模型，它常常会出错。"],
  onlyContinues: ["This model was only pretrained: it continues your text.", "这个模型只做过预训练：它会续写你的文字。"],
  note: ["Enter sends, Shift+Enter starts a line, Esc stops.", "回车发送，Shift+回车换行，Esc 停止。"],
  temperature: ["Temperature", "温度"],
  topk: ["Among the likeliest (0: all)", "候选词数（0 为不限）"],
  maxTokens: ["Longest answer, tokens", "回答最长词元数"],
  system: ["Instruction before every conversation", "每次对话前的指令"],
  token: ["Access token, if the server asks for one", "访问令牌（服务器需要时填写）"],
  erase: ["Delete all conversations", "删除全部对话"],
  eraseSure: ["Delete all conversations in this browser?", "删除此浏览器里的全部对话？"],
  done: ["Done", "完成"],
  copy: ["Copy", "复制"],
  copied: ["Copied", "已复制"],
  edit: ["Edit", "编辑"],
  again: ["Again", "重新生成"],
  cancel: ["Cancel", "取消"],
  resend: ["Send", "发送"],
  drop: ["Delete", "删除"],
  gone: ["Server not reachable", "服务器无法连接"],
  back: ["Connected", "已连接"],
  stopped: ["stopped", "已停止"],
  cut: ["cut off at the length limit", "已达长度上限"],
  full: ["the model's context is full", "模型上下文已满"],
  broke: ["The answer broke off.", "回答中断了。"],
  needToken: ["The server needs an access token: see Settings.", "服务器需要访问令牌：请在设置中填写。"],
  busy: ["The server is busy. Try again in a moment.", "服务器繁忙，请稍后再试。"],
  tooLong: ["This conversation is too long for the model. Start a new one.", "这段对话超过了模型的上下文，请新建对话。"],
  untitled: ["New conversation", "新对话"],
  perSecond: ["tokens/s", "词元/秒"],
  facts: ["{model}\nstage {stage}, step {step}\n{parameters} parameters, context {context}", "{model}\n阶段 {stage}，第 {step} 步\n参数 {parameters}，上下文 {context}"],
  tries: [["What is 3 + 4?", "Tell me a story.", "Why is the sky blue?"], ["3 + 4 等于几？", "讲个故事吧。", "天空为什么是蓝色的？"]],
};

let column = 0;

export function setLanguage(language) {
  column = language === "zh" ? 1 : 0;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = text(node.dataset.text);
  for (const node of document.querySelectorAll("[data-label]")) { node.title = text(node.dataset.label); node.setAttribute("aria-label", node.title); }
}

export function text(key, values = {}) {
  const found = TEXTS[key][column];
  return typeof found === "string" ? found.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "?") : found;
}
