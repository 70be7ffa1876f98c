"use strict";
// Keys: each one stands on the element that it acts on (`data-key`). None fires while somebody types, with a modifier, on
// repeat, or behind a dialog; a switch turns all of them off. Times are shown in the reader's own zone.
(() => {
  const OFF = "tandem-keys-off";
  const ALSO = { ArrowRight: "j", ArrowLeft: "k" };
  const isOff = () => localStorage.getItem(OFF) === "1";

  const isTyping = (target) =>
    target instanceof Element && target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

  const isUsable = (element) => element.getClientRects().length > 0 && !element.disabled;

  // The open criterion's own keys come before those of the page.
  const target = (key) => {
    const all = [...document.querySelectorAll(`[data-key="${CSS.escape(key)}"]`)];
    const isElsewhere = (element) => {
      const criterion = element.closest(".criterion");
      return criterion !== null && !criterion.classList.contains("now");
    };
    return all.find((element) => !isElsewhere(element) && (isUsable(element) || element.dataset.go || partOf(element)));
  };

  // On a narrow screen one part is shown at a time; a key acts in all of them.
  const partOf = (element) => {
    const part = element.disabled ? null : element.closest("main.review > :not(.show)");
    return part && getComputedStyle(part).display === "none" ? part : null;
  };

  // Whoever is in something that scrolls moves there.
  const isScrolling = ({ key, target }) => key.startsWith("Arrow") && target instanceof Element && target.matches('[tabindex="0"]');

  // Points that have no key of their own are typed.
  const field = (key) => (/^[0-9]$/.test(key) ? document.querySelector(".criterion.now [data-digits]") : null);

  document.addEventListener("keydown", (event) => {
    const dialog = document.querySelector("dialog[open]");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target instanceof HTMLTextAreaElement) {
      event.preventDefault();
      event.target.form?.requestSubmit();
      return;
    }
    if (event.key === "Escape" && isTyping(event.target)) {
      event.target.blur();
      return;
    }
    if (dialog || event.ctrlKey || event.altKey || event.metaKey || event.repeat || isTyping(event.target)) return;
    if (isScrolling(event)) return;
    if (isOff() && event.key !== "?") return;
    const key = ALSO[event.key] ?? event.key;
    const custom = new CustomEvent("tandem-key", { detail: key, cancelable: true });
    if (!document.dispatchEvent(custom)) {
      event.preventDefault();
      return;
    }
    const element = target(key) ?? field(key);
    if (!element) return;
    const part = element.dataset.go ? null : partOf(element);
    if (part && !isUsable(element)) document.dispatchEvent(new CustomEvent("tandem-reveal", { detail: part.id }));
    if ("digits" in element.dataset) {
      // The digit goes into it.
      element.focus();
      element.select();
      return;
    }
    event.preventDefault();
    if (element.matches("input")) {
      element.focus();
      element.select();
    } else element.click();
  });

  const help = () => {
    const dialog = document.getElementById("keys");
    const rows = [["↓ ↑", "next, previous criterion"], ["1 … 9", "level of the open criterion; 0 is the lowest. Where there are many, type the points, then ↵"], ["] [", "next, previous evidence"], ["j k, → ←", "next, previous work"]];
    const seen = new Set(["j", "k"]);
    for (const element of document.querySelectorAll("[data-key]")) {
      const key = element.dataset.key;
      if (seen.has(key) || /^[0-9]$/.test(key) || key === "?") continue;
      seen.add(key);
      let words = key === "f" ? "write feedback" : element.textContent.trim();
      if (element.matches("input")) words = element.getAttribute("aria-label").toLowerCase();
      rows.push([key, words.replace(new RegExp(`\\s${CSS.escape(key)}$`), "")]);
    }
    rows.push(["Ctrl ↵", "in a field: save"], ["Esc", "leave a field"]);
    const body = dialog.querySelector("tbody");
    body.replaceChildren(
      ...rows.map(([key, words]) => {
        const row = document.createElement("tr");
        const cell = row.insertCell();
        const kbd = document.createElement("kbd");
        kbd.textContent = key;
        cell.append(kbd);
        row.insertCell().textContent = words;
        return row;
      }),
    );
    const on = document.getElementById("keys-on");
    on.checked = !isOff();
    on.onchange = () => localStorage.setItem(OFF, on.checked ? "0" : "1");
    dialog.showModal();
  };
  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest("#help")) help();
  });

  const two = (n) => String(n).padStart(2, "0");
  const times = (root) => {
    for (const time of root.querySelectorAll("time[data-ms]")) {
      const date = new Date(Number(time.dataset.ms));
      const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
      time.dateTime = date.toISOString();
      const isToday = date.toDateString() === new Date().toDateString();
      time.textContent = "day" in time.dataset || !isToday ? `${date.toLocaleDateString()} ${clock}` : clock;
    }
  };
  times(document);
  document.addEventListener("tandem-shown", () => times(document));
})();
