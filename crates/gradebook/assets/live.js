"use strict";
// A part of the page that the server sends again whenever it has changed; and files that are dropped.
(() => {
  const live = document.getElementById("live");
  const tell = (text) => {
    document.getElementById("status").textContent = text;
  };

  const take = (html) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const ends = [...live.querySelectorAll(".answer")].map((a) => a.scrollTop + a.clientHeight >= a.scrollHeight - 30);
    const tops = [...live.querySelectorAll(".answer")].map((a) => a.scrollTop);
    update(live, page.body);
    // Whoever has scrolled up reads there; the others see what comes.
    [...live.querySelectorAll(".answer")].forEach((a, i) => {
      a.scrollTop = ends[i] ?? true ? a.scrollHeight : tops[i];
    });
    document.dispatchEvent(new Event("tandem-shown"));
  };

  // Replaces what differs and nothing else, so that a button stays under the finger.
  const update = (old, next) => {
    const [from, to] = [[...old.children], [...next.children]];
    const isSame = from.length === to.length && from.every((one, i) => one.tagName === to[i].tagName);
    if (!isSame || from.length === 0) {
      old.replaceChildren(...next.childNodes);
      return;
    }
    from.forEach((one, i) => {
      if (one.outerHTML === to[i].outerHTML) return;
      const isGroup = ["HEADER", "MAIN"].includes(one.tagName) && one.className === to[i].className;
      if (isGroup) update(one, to[i]);
      else one.replaceWith(to[i]);
    });
  };

  // A browser keeps few connections to one server: a page that nobody sees gives its own up.
  let source = null;
  const open = () => {
    if (source || "over" in live.dataset || document.hidden) return;
    source = new EventSource(live.dataset.events);
    source.onmessage = (event) => {
      tell("");
      take(event.data);
    };
    source.addEventListener("final", (event) => {
      close();
      take(event.data);
      live.dataset.over = "";
      const stop = document.getElementById("stop");
      if (stop) stop.disabled = true;
    });
    source.onerror = () => tell("The connection broke. Trying again …");
  };
  const close = () => {
    source?.close();
    source = null;
  };
  if (live?.dataset.events) {
    open();
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  }

  const text = document.getElementById("text");
  if (!text) return;
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", async (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (!file) return;
    document.getElementById("name").value = file.name;
    text.value = await file.text();
    text.focus();
  });
})();
