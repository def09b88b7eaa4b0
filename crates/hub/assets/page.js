// Without this script every page can be read. With it, pages follow what happens and the keyboard moves around.
"use strict";
(() => {
  const live = document.getElementById("live");
  const say = (text, off) => { if (live) { live.hidden = false; live.textContent = text; live.classList.toggle("off", off); } };

  const age = (seconds) => {
    if (seconds < 60) return Math.max(0, Math.floor(seconds)) + " s";
    if (seconds < 3600) return Math.floor(seconds / 60) + " min";
    if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
    return Math.floor(seconds / 86400) + " d";
  };
  // The server's clock counts: it wrote the times.
  const rendered = Date.now();
  const ages = () => {
    for (const time of document.querySelectorAll("time[data-age]")) {
      time.textContent = age(Number(time.dataset.age) + (Date.now() - Number(time.dataset.at || rendered)) / 1000);
    }
  };
  const stamp = (root) => { for (const time of root.querySelectorAll("time[data-age]")) time.dataset.at = Date.now(); };
  stamp(document);
  setInterval(ages, 1000);

  let busy = false, again = false, missed = false;
  // What somebody is typing is not taken from under their hands; the page catches up once they leave the form.
  const typing = () => document.activeElement && document.activeElement.closest("main form");
  const refresh = async () => {
    if (busy) { again = true; return; }
    missed = Boolean(typing());
    if (missed) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const field = document.activeElement;
      missed = Boolean(typing());
      if (missed) { busy = false; return; }
      const [now, next] = [document.querySelector("main"), fresh.querySelector("main")];
      const open = new Set([...now.querySelectorAll("details[open] > summary")].map((item) => item.textContent));
      for (const item of next.querySelectorAll("details > summary")) if (open.has(item.textContent)) item.parentElement.open = true;
      const kept = field && now.contains(field) && field.getAttribute("href");
      stamp(next);
      now.replaceChildren(...next.childNodes);
      document.title = fresh.title;
      if (kept) for (const link of now.querySelectorAll("a[href]")) if (link.getAttribute("href") === kept) { link.focus({ preventScroll: true }); break; }
      say("live", false);
    } catch { say("reconnecting", true); }
    busy = false;
    if (again) { again = false; setTimeout(refresh, 1000); }
  };
  if ("live" in document.body.dataset && window.EventSource) {
    const events = new EventSource("/api/v1/events");
    let first = true;
    events.onopen = () => { say("live", false); if (!first) refresh(); first = false; };
    events.onerror = () => say("reconnecting", true);
    events.addEventListener("changed", refresh);
    document.addEventListener("focusout", () => setTimeout(() => { if (missed) refresh(); }));
    // What changes without a report.
    if (document.body.dataset.every) setInterval(refresh, Number(document.body.dataset.every) * 1000);
  }

  const stops = () => [...document.querySelectorAll(".group > a, .nodes th a, .causes th a, .results p > a, .files th a")];
  const move = (step) => {
    const all = stops();
    const at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + step))];
    if (next) next.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.closest && event.target.closest("input, select, textarea");
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    const keys = { j: () => move(1), k: () => move(-1), g: () => location.assign("/"), c: () => location.assign("/causes"), r: () => location.assign("/roles"), w: () => location.assign("/waves"),
      "/": () => { const find = document.getElementById("find"); if (find) { event.preventDefault(); find.focus(); find.select(); } } };
    if (Object.hasOwn(keys, event.key)) keys[event.key]();
  });
})();
