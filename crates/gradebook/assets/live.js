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
    live.replaceChildren(...page.body.childNodes);
    // Whoever has scrolled up reads there; the others see what comes.
    [...live.querySelectorAll(".answer")].forEach((a, i) => {
      a.scrollTop = ends[i] ?? true ? a.scrollHeight : tops[i];
    });
    document.dispatchEvent(new Event("tandem-shown"));
  };

  if (live?.dataset.events) {
    const source = new EventSource(live.dataset.events);
    source.onmessage = (event) => {
      tell("");
      take(event.data);
    };
    source.addEventListener("final", (event) => {
      source.close();
      take(event.data);
      live.dataset.over = "";
      const stop = document.getElementById("stop");
      if (stop) stop.disabled = true;
    });
    source.onerror = () => tell("The connection broke. Trying again …");
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
