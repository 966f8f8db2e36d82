// Perfetto's trace processor as its page starts it, in a worker: requests of a file in, replies to a file out.
"use strict";
const fs = require("fs");
const path = require("path");
const [folder, requests, replies] = process.argv.slice(2);

globalThis.self = globalThis;
globalThis.location = { href: "" };
globalThis.WorkerGlobalScope = globalThis;
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(_method, url) {
    this.file = path.join(folder, url);
  }
  send() {
    this.status = 200;
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
};
delete globalThis.process; // or it takes itself for a command of Node.js

require("vm").runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
const port = { postMessage: (bytes) => fs.appendFileSync(replies, bytes) };
self.onmessage({ data: port });
setTimeout(() => port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) }));
