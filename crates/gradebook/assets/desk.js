"use strict";
// The review: saves one after the other, goes to the next work without a wait, lights the lines of the open criterion.
// Without this script every form and link still works.
(() => {
  const desk = () => document.getElementById("desk");
  const shown = () => desk()?.dataset.work;
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  // --- Saves: each waits for the one before it, and names the version that this one left.
  const versions = new Map();
  // What was not saved, by work: it stays until the person has decided. While there is some, what follows waits with it.
  const held = new Map();
  let line = Promise.resolve();
  let waiting = 0;
  let status = "";
  // Whether queue and steps are as they are after all that was saved.
  let isFresh = true;
  // When the work that is shown came to the screen.
  let since = performance.now();

  const tell = (text = status) => {
    status = text;
    const place = document.getElementById("status");
    const count = [...held.values()].flat().length;
    const rest = count > 0 ? `${count} not saved: see the marked submissions` : "";
    if (place) place.textContent = [text === "saved" && rest ? "" : text, rest].filter(Boolean).join(" · ");
  };

  const hold = (work, entry) => held.set(work, [...(held.get(work) ?? []), entry]);

  const words = (body) => {
    const what = body.get("do").replaceAll("-", " ");
    const value = body.get("points") ?? body.get("text");
    return value ? `${what}: ${value}` : what;
  };

  // A body that is too large for it must not be sent with `keepalive`.
  const SMALL = 50_000;
  const send = async (action, body) => {
    for (;;) {
      try {
        const keepalive = body.toString().length < SMALL;
        const signal = AbortSignal.timeout(30_000);
        return await fetch(action, { method: "POST", body, headers: { "X-Parts": "1" }, keepalive, signal });
      } catch {
        tell("Not saved yet: tandem cannot be reached. Trying again …");
        await sleep(1000);
      }
    }
  };

  const save = (action, body, work) => {
    // What is sent twice, because its answer was lost, is done once.
    if (!body.has("key")) body.set("key", crypto.randomUUID());
    ready.clear();
    generation += 1;
    waiting += 1;
    isFresh = false;
    tell("saving …");
    const done = line.then(async () => {
      try {
        if (held.has(work)) {
          hold(work, { action, body, text: `Not sent, because of what is above: ${words(body)}.` });
          return false;
        }
        if (versions.has(work)) body.set("version", versions.get(work));
        const response = await send(action, body);
        return take(parse(await response.text()), response.status, { action, body, work });
      } catch (error) {
        console.error(error);
        hold(work, { action, body, text: `Perhaps not saved: ${words(body)}.` });
        return false;
      } finally {
        waiting -= 1;
        ready.clear();
        generation += 1;
        settle();
        if (waiting === 0 && !isFresh) refresh();
      }
    });
    line = done;
    return done;
  };

  // Which list an address is of.
  const query = (address) => {
    const params = new URL(address, location.href).searchParams;
    params.delete("c");
    return params.toString();
  };

  // Takes over what came back for a work; the work itself only if it is the one that is shown. True if it was saved.
  const take = (page, code, { action, body, work }) => {
    const next = page.getElementById("desk");
    const isSaved = code < 300;
    const notice = next?.querySelector(".notice");
    const message = notice?.querySelector("p")?.textContent ?? page.querySelector("h1")?.textContent ?? "not saved";
    // What the rules refuse is said on the desk, unless the person is leaving it; all else waits for the person.
    if (!isSaved && (code !== 422 || !next || shown() !== work || leaving > 0)) {
      notice?.remove();
      hold(work, { action, body, text: next ? message : `${message}: ${words(body)}.` });
    }
    if (next && (isSaved || shown() === work)) versions.set(work, next.dataset.version);
    if (isSaved) written(work, body);
    // The queue that came is that of this work: another one that is shown asks for its own.
    if (next && shown() === work) {
      if (query(action) === query(location.href)) showParts(page, work);
      else go(location.href, false);
    }
    tell(isSaved ? (waiting > 1 ? "saving …" : "saved") : "");
    return isSaved;
  };

  // The model takes its time: what is saved meanwhile does not wait for it. What does not come is told, and is no edit.
  const askModel = async (form) => {
    const work = shown();
    form.querySelector("button").disabled = true;
    await line;
    tell("the model works …");
    try {
      const response = await fetch(form.action, { method: "POST", headers: { "X-Parts": "1" } });
      const page = parse(await response.text());
      if (!page.getElementById("desk")) {
        const why = [page.querySelector("h1")?.textContent, page.querySelector("main p")?.textContent];
        tell(why.filter(Boolean).join(": "));
      } else if (shown() === work) {
        tell("");
        if (waiting === 0 && query(form.action) === query(location.href)) showParts(page, work);
        else {
          await line;
          await go(location.href, false);
        }
      }
    } catch {
      tell("tandem cannot be reached. Look at the submission again.");
    }
    form.querySelector("button").disabled = false;
    ready.clear();
    generation += 1;
    settle();
  };

  // Asks for queue, steps and counts of the work that is shown, after another one was saved.
  const refresh = async () => {
    const work = shown();
    const asked = generation;
    try {
      const response = await fetch(location.href, { headers: { "X-Parts": "1" } });
      const page = parse(await response.text());
      const next = page.getElementById("desk");
      if (next?.dataset.work !== work || shown() !== work || asked !== generation) return;
      if (next.dataset.version === desk().dataset.version) {
        // A form that is open stays open.
        replace("head", page);
        replace("queue", page);
        desk().querySelector(".steps").replaceWith(next.querySelector(".steps"));
        isFresh = true;
      } else showParts(page, work);
      settle();
    } catch {
      // What is shown stays; the next approval asks the server where to go.
    }
  };

  // Shows the parts of a work that is shown already.
  const showParts = (page, work) => {
    const next = page.getElementById("desk");
    const open = current()?.dataset.criterion;
    const focus = focused();
    versions.set(work, next.dataset.version);
    isFresh = waiting <= 1;
    keepDrafts();
    replace("head", page);
    replace("queue", page);
    replace("desk", page);
    putDrafts();
    openCriterion(open);
    restore(focus);
  };

  // --- Texts that are being written, by work and field.
  const drafts = new Map();
  const fields = () => [...(desk()?.querySelectorAll("textarea") ?? [])];
  // A field is known by what it changes: items move when one of them is removed.
  const nameOf = (field) => {
    const { do: act, was } = field.form.elements;
    return `${act.value} ${was?.value ?? ""}`;
  };
  const keepDrafts = () => {
    const own = fields().filter((field) => field.value !== field.defaultValue);
    const draft = (field) => ({
      field: nameOf(field),
      value: field.value,
      isFocused: field === document.activeElement,
      range: [field.selectionStart, field.selectionEnd],
    });
    if (own.length > 0) drafts.set(shown(), own.map(draft));
    else drafts.delete(shown());
  };
  const putDrafts = () => {
    for (const draft of drafts.get(shown()) ?? []) {
      // What belongs to no item any more becomes a new one, so that nothing is lost.
      const field = fields().find((f) => nameOf(f) === draft.field) ?? fields().find((f) => nameOf(f) === "add ");
      if (!field) continue;
      const isTaken = field.value !== field.defaultValue && nameOf(field) !== draft.field;
      field.value = isTaken ? `${field.value}\n${draft.value}` : draft.value;
      field.closest("details")?.setAttribute("open", "");
      if (draft.isFocused) {
        field.focus();
        field.setSelectionRange(...draft.range);
      }
    }
  };
  // What was saved is no draft any more, also of a work that was left meanwhile.
  const written = (work, body) => {
    const text = body.get("text");
    if (text === null) return;
    const isIt = (act, value) => value === text && act === body.get("do");
    const rest = (drafts.get(work) ?? []).filter((draft) => !isIt(draft.field.split(" ")[0], draft.value));
    if (rest.length > 0) drafts.set(work, rest);
    else drafts.delete(work);
    if (shown() !== work) return;
    for (const field of fields()) {
      if (isIt(field.form.elements.do.value, field.value)) field.value = field.defaultValue;
    }
  };

  const replace = (id, page) => {
    const from = page.getElementById(id);
    if (from) document.getElementById(id)?.replaceWith(from);
  };

  // What every change of the page needs.
  const settle = () => {
    for (const link of document.querySelectorAll("#queue [data-work]")) {
      if (link.dataset.work === shown()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      if (held.has(link.dataset.work)) link.dataset.conflict = "";
    }
    putHeld();
    tell();
    light();
    tabs();
    document.dispatchEvent(new Event("tandem-shown"));
    prefetch();
  };

  const button = (text, act) => {
    const one = document.createElement("button");
    one.type = "button";
    one.textContent = text;
    one.addEventListener("click", act);
    return one;
  };

  // What was not saved of the work that is shown, with what can be done about it.
  const putHeld = () => {
    const notices = document.getElementById("notices");
    const work = shown();
    if (!notices) return;
    notices.querySelectorAll(".conflict").forEach((notice) => notice.remove());
    for (const entry of held.get(work) ?? []) {
      const box = document.createElement("div");
      box.className = "notice conflict";
      box.setAttribute("role", "alert");
      const text = document.createElement("p");
      text.textContent = entry.text;
      const row = document.createElement("div");
      row.className = "row";
      const drop = () => {
        const rest = held.get(work).filter((other) => other !== entry);
        if (rest.length > 0) held.set(work, rest);
        else held.delete(work);
      };
      const again = button("Take mine", () => {
        // The others wait until this one was answered.
        const rest = held.get(work).filter((other) => other !== entry);
        held.delete(work);
        save(entry.action, entry.body, work).then(() => {
          if (rest.length > 0) held.set(work, [...(held.get(work) ?? []), ...rest]);
          settle();
        });
      });
      row.append(again, button("Drop mine", () => { drop(); settle(); }));
      box.append(text, row);
      notices.append(box);
    }
  };

  // Where the person is on the desk, so that what is replaced leaves nobody behind.
  const focused = () => {
    const active = document.activeElement;
    if (!active?.closest("#desk")) return null;
    const { name, value, dataset } = active;
    if (dataset.key && !active.closest(".criterion")) return `[data-key="${CSS.escape(dataset.key)}"]`;
    if ("digits" in dataset) return ".now [data-digits]";
    if (name) return `.now button[name="${CSS.escape(name)}"][value="${CSS.escape(value)}"]`;
    return "h1";
  };
  const restore = (focus) => {
    if (!focus || desk().contains(document.activeElement)) return;
    const same = desk().querySelector(focus) ?? desk().querySelector("h1");
    same.focus({ preventScroll: true });
  };

  // --- Going to another work.
  const ready = new Map();
  let generation = 0;
  let turns = 0;
  let leaving = 0;

  const load = async (href) => {
    const response = await fetch(href);
    if (!response.ok) throw new Error(`status ${response.status}`);
    return { text: await response.text(), url: response.url };
  };

  const prefetch = async () => {
    const links = document.querySelectorAll('[data-go="open"]:not([data-end]), [data-go="next"]');
    for (const { href } of links) {
      if (ready.has(href)) continue;
      const asked = generation;
      try {
        const page = await load(href);
        if (asked === generation) ready.set(href, page);
      } catch {
        return;
      }
    }
  };

  const show = (page, push) => {
    const next = parse(page.text);
    const main = next.querySelector("main.review");
    if (!main) {
      location.href = page.url;
      return;
    }
    const focus = focused() ?? "h1";
    keepDrafts();
    document.querySelector("main.review").replaceWith(main);
    replace("head", next);
    document.title = next.title;
    if (push) history.pushState(null, "", page.url);
    isFresh = waiting === 0;
    since = performance.now();
    const now = desk();
    // A save of this work may be on its way; then its answer says the version.
    if (waiting === 0 || !versions.has(now.dataset.work)) versions.set(now.dataset.work, now.dataset.version);
    putDrafts();
    settle();
    restore(focus);
    lookAtFirst();
    main.querySelector("#queue [aria-current]")?.scrollIntoView({ block: "nearest" });
  };

  const go = async (href, push = true) => {
    const turn = ++turns;
    const kept = ready.get(href);
    if (kept) {
      show(kept, push);
      return;
    }
    leaving += 1;
    try {
      const page = await load(href);
      if (turn === turns) show(page, push);
    } catch {
      if (turn === turns) tell("The page cannot be reached. Try again.");
    } finally {
      leaving -= 1;
    }
  };

  // --- Forms and links.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement)) return;
    if ("names" in form.dataset) {
      event.preventDefault();
      await line;
      await fetch(form.action, { method: "POST", redirect: "manual" });
      location.reload();
      return;
    }
    if ("find" in form.dataset) {
      event.preventDefault();
      const query = new URLSearchParams(new FormData(form));
      go(`${form.action}?${query}`);
      return;
    }
    if ("inLine" in form.dataset) {
      event.preventDefault();
      // It takes its place in the line, behind what is being saved.
      line = line.then(async () => {
        try {
          const body = new URLSearchParams(new FormData(form));
          const response = await fetch(form.action, { method: "POST", body, signal: AbortSignal.timeout(30_000) });
          const page = { text: await response.text(), url: response.url };
          ready.clear();
          generation += 1;
          if (response.ok) {
            const now = parse(page.text).getElementById("desk");
            if (now) versions.set(now.dataset.work, now.dataset.version);
            show(page, true);
            tell(form.dataset.inLine);
          } else tell(parse(page.text).querySelector("main p")?.textContent ?? "not done");
        } catch {
          tell("Perhaps not done: look at the submission.");
        }
      });
      return;
    }
    if ("model" in form.dataset) {
      event.preventDefault();
      askModel(form);
      return;
    }
    if (!form.dataset.save) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const work = form.dataset.save;
    if ("approve" in form.dataset) body.set("shown", Math.round(performance.now() - since));
    if (!("approve" in form.dataset)) {
      save(form.action, body, work);
      return;
    }
    const next = () => document.querySelector('[data-go="open"]');
    keepDrafts();
    const isSure = isFresh && "canApprove" in desk().dataset && !held.has(work) && !drafts.has(work);
    const kept = isSure && ready.get(next().href);
    const done = save(form.action, body, work);
    if (kept) {
      turns += 1;
      show(kept, true);
    } else if ((await done) && shown() === work) await go(next().href);
  });

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const link = event.target.closest("#queue a, .steps a, a[data-list]");
    if (link) {
      event.preventDefault();
      go(link.href);
      return;
    }
    const header = event.target.closest(".criterion > header");
    if (header) openCriterion(header.parentElement.dataset.criterion);
    const jump = event.target.closest('a[href^="#f"]');
    if (jump) {
      event.preventDefault();
      look(jump.getAttribute("href").slice(1));
    }
    const tab = event.target.closest(".tabs a, .skip a");
    if (tab) {
      event.preventDefault();
      const part = tab.getAttribute("href").slice(1);
      tabs(part);
      if (tab.closest(".skip")) document.getElementById(part).querySelector(".source, h1")?.focus();
    }
  });

  // Forms that a person opens get the place to write; not those that come open.
  document.addEventListener("click", (event) => {
    const details = event.target instanceof Element ? event.target.closest("summary")?.parentElement : null;
    if (details) setTimeout(() => details.open && details.querySelector("textarea")?.focus());
  });

  window.addEventListener("popstate", () => go(location.href, false));
  window.addEventListener("beforeunload", (event) => {
    keepDrafts();
    if (waiting > 0 || held.size > 0 || drafts.size > 0) event.preventDefault();
  });

  // --- The open criterion and its lines.
  const current = () => document.querySelector(".criterion.now");

  const openCriterion = (id) => {
    const next = id && document.querySelector(`.criterion[data-criterion="${CSS.escape(id)}"]`);
    if (!next) return;
    for (const criterion of document.querySelectorAll(".criterion")) {
      const isOpen = criterion === next;
      criterion.classList.toggle("now", isOpen);
      criterion.querySelector("[aria-expanded]")?.setAttribute("aria-expanded", String(isOpen));
    }
    next.scrollIntoView({ block: "nearest" });
    light();
  };

  const light = () => {
    const id = current()?.dataset.criterion;
    for (const row of document.querySelectorAll(".source [data-criteria]")) {
      const isOpen = row.dataset.criteria.split(" ").includes(id);
      row.classList.toggle("open", isOpen);
      row.classList.toggle("other", !isOpen);
    }
  };

  const look = (id) => {
    const row = document.getElementById(id);
    if (!row) return;
    row.closest("details")?.setAttribute("open", "");
    tabs("work", true);
    row.scrollIntoView({ block: "center" });
  };

  const lookAtFirst = () => {
    const row = document.querySelector(".source .open") ?? document.querySelector(".source [data-flagged]");
    row?.scrollIntoView({ block: "center" });
  };

  const step = (by) => {
    const all = [...document.querySelectorAll(".criterion")];
    const place = all.indexOf(current()) + by;
    if (all[place]) {
      openCriterion(all[place].dataset.criterion);
      lookAtFirst();
    }
  };

  const stepTo = (by) => {
    tabs("desk");
    step(by);
  };

  let evidence = 0;
  const stepEvidence = (by) => {
    const all = [...(current()?.querySelectorAll(".quote") ?? [])];
    if (all.length === 0) return;
    evidence = (evidence + by + all.length) % all.length;
    look(all[evidence].getAttribute("href").slice(1));
  };

  document.addEventListener("tandem-key", (event) => {
    const acts = {
      ArrowDown: () => stepTo(1),
      ArrowUp: () => stepTo(-1),
      "]": () => stepEvidence(1),
      "[": () => stepEvidence(-1),
      0: () => current()?.querySelector('[data-key="1"]')?.click(),
    };
    const isTyped = event.detail === "0" && current()?.querySelector("[data-digits]");
    if (!(event.detail in acts) || isTyped) return;
    event.preventDefault();
    acts[event.detail]();
  });

  // A click on the number of a line begins a comment on it.
  document.addEventListener("click", (event) => {
    const row = event.target instanceof Element && event.target.matches(".source [id] > b") ? event.target.parentElement : null;
    const form = document.getElementById("comment");
    const place = /^f(\d+)l(\d+)$/.exec(row?.id ?? "");
    if (!place || !form) return;
    form.closest("details").setAttribute("open", "");
    form.elements.index.value = place[1];
    form.elements.line.value = place[2];
    tabs("desk");
    form.elements.text.focus();
  });

  // --- On a narrow screen one part at a time.
  let tab = "desk";
  const tabs = (next = tab, isJump = false) => {
    if (isJump && getComputedStyle(document.querySelector(".tabs")).display === "none") return;
    tab = next;
    for (const part of document.querySelectorAll("main.review > *")) part.classList.toggle("show", part.id === tab);
    for (const link of document.querySelectorAll(".tabs a")) {
      if (link.getAttribute("href") === `#${tab}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  };

  // A key acts on something of another part: that is shown.
  document.addEventListener("tandem-reveal", (event) => tabs(event.detail));

  versions.set(shown(), desk().dataset.version);
  settle();
  lookAtFirst();
})();
