// Pages that are opened from a file may start no worker, and the search of the theme runs in one. Here its script runs in
// a hidden frame instead, which passes messages on. Served pages are left alone.
if (location.protocol === "file:") {
  // As between threads: a copy arrives, and later than the sender goes on.
  const pass = (data, to) => {
    const copy = structuredClone(data)
    setTimeout(() => to.dispatchEvent(new MessageEvent("message", { data: copy })))
  }
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => pass(data, this)
      this.inside.importScripts = () => {}
      const script = frame.contentDocument.createElement("script")
      script.src = new URL(url, location.href).href
      this.loaded = new Promise(resolve => script.addEventListener("load", resolve))
      frame.contentDocument.body.appendChild(script)
    }
    postMessage(data) {
      this.loaded.then(() => pass(data, this.inside))
    }
    set onmessage(listener) { this.addEventListener("message", listener) }
    terminate() {}
  }
}
