// Keeps the operations page current: the server sends the rendered <main> whenever it changes, and only what differs is replaced.
(() => {
  "use strict";
  const main = document.getElementById("live");
  const state = document.getElementById("live-state");
  if (!main || !window.EventSource) return;

  const patch = (present, wanted) => {
    if (present.isEqualNode(wanted)) return;
    const alike = present.nodeType === Node.ELEMENT_NODE && present.tagName === wanted.tagName
      && present.id === wanted.id && present.childNodes.length === wanted.childNodes.length;
    if (!alike) {
      present.replaceWith(document.importNode(wanted, true));
      return;
    }
    for (const name of present.getAttributeNames()) {
      if (!wanted.hasAttribute(name) && name !== "open") present.removeAttribute(name); // what a reader opened stays open
    }
    for (const name of wanted.getAttributeNames()) {
      if (present.getAttribute(name) !== wanted.getAttribute(name)) present.setAttribute(name, wanted.getAttribute(name));
    }
    const parts = [...present.childNodes];
    [...wanted.childNodes].forEach((part, at) => patch(parts[at], part));
  };

  const show = (event) => {
    const wanted = new DOMParser().parseFromString(`<main>${event.data}</main>`, "text/html").querySelector("main");
    for (const name of ["id", "data-events"]) wanted.setAttribute(name, main.getAttribute(name));
    if (main.childNodes.length === wanted.childNodes.length) patch(main, wanted);
    else main.replaceChildren(...[...wanted.childNodes].map((part) => document.importNode(part, true)));
    document.body.dataset.updates = String(Number(document.body.dataset.updates || 0) + 1);
  };
  const alive = (text) => {
    state.classList.remove("lost");
    state.textContent = text;
  };

  let source;
  const connect = () => {
    source = new EventSource(main.dataset.events);
    source.addEventListener("report", (event) => { show(event); alive(`live, ${event.lastEventId}`); });
    source.addEventListener("same", (event) => alive(`live, ${event.lastEventId}`));
    source.onerror = () => { state.classList.add("lost"); state.textContent = "connection lost, trying again"; };
  };
  // A hidden page costs the server nothing.
  document.addEventListener("visibilitychange", () => { source.close(); if (!document.hidden) connect(); });
  window.addEventListener("pagehide", () => source.close());
  connect();
})();
