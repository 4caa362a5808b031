"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);

  // The theme: the system's, light or dark.  A page opened from a file may have no storage.
  const themes = ["system", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("deepstack-theme"); } catch { return null; } };
  const button = byId("theme");
  function show(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    button.value = theme;
  }
  show(themes.includes(stored()) ? stored() : "system");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.value) + 1) % themes.length];
    show(next);
    try { localStorage.setItem("deepstack-theme", next); } catch { /* it lasts as long as the page */ }
  });

  // Filters: of the matrix its lines, columns and cells; of the findings those that are left.
  const form = byId("filters");
  function wanted() {
    return {
      names: all("select[data-name]", form).map((one) => one.value),
      rule: form.querySelector("select[data-rule]").value,
      verdicts: all("input[data-verdict]:checked", form).map((one) => one.dataset.verdict),
      words: form.querySelector("[data-search]").value.toLowerCase().split(/\s+/).filter(Boolean),
    };
  }
  const same = (names, chosen) => chosen.every((value, place) => !value || names[place] === value);
  const holds = (element, words) => words.every((word) => element.textContent.toLowerCase().includes(word));

  function filterLine(line, filter) {
    const names = all("th", line).map((one) => one.dataset.name);
    let told = false;
    for (const cell of all("td", line)) {
      const inColumn = !filter.rule || cell.dataset.rule === filter.rule;
      const chosen = !filter.verdicts.length || filter.verdicts.includes(cell.dataset.verdict);
      cell.hidden = !inColumn;
      cell.classList.toggle("dimmed", !chosen);
      told ||= inColumn && chosen && Boolean(cell.dataset.verdict);
    }
    const found = !filter.words.length || holds(line, filter.words) || all("[data-open]", line).some(
      (link) => link.dataset.open.split(" ").some((key) => holds(byId(key), filter.words)));
    line.hidden = !(told && found && same(names, filter.names));
  }

  function filterFinding(finding, filter) {
    const verdicts = finding.dataset.verdicts.split(" ");
    const rules = finding.dataset.rules.split(" ");
    const told = verdicts.some((verdict, place) =>
      (!filter.verdicts.length || filter.verdicts.includes(verdict)) && (!filter.rule || rules[place] === filter.rule));
    finding.hidden = !(told && same(JSON.parse(finding.dataset.names), filter.names) && holds(finding, filter.words));
  }

  function apply() {
    const filter = wanted();
    for (const head of all("#matrix thead [data-rule]")) head.hidden = Boolean(filter.rule) && head.dataset.rule !== filter.rule;
    const lines = all("#matrix tbody tr");
    for (const line of lines) filterLine(line, filter);
    const findings = all("#incidents .finding");
    for (const finding of findings) filterFinding(finding, filter);
    const left = (list) => `${list.filter((one) => !one.hidden).length} of ${list.length}`;
    for (const group of all("#incidents .incident")) {
      const own = all(".finding", group);
      group.hidden = own.length ? own.every((one) => one.hidden) : filtered(filter);
    }
    byId("left").textContent = `${left(lines)} lines, ${left(findings)} findings`;
    remember(filter);
  }

  // The filters stand in the address, behind "#?", so that a link shows what its sender saw.
  const filtered = (filter) => Boolean(
    filter.rule || filter.verdicts.length || filter.words.length || filter.names.some(Boolean));
  function remember(filter) {
    const pairs = [...filter.names.map((value, place) => [`name${place}`, value]), ["rule", filter.rule],
      ["verdicts", filter.verdicts.join(" ")], ["words", filter.words.join(" ")]].filter(([, value]) => value);
    if (pairs.length) history.replaceState(null, "", `#?${new URLSearchParams(pairs)}`);
    else if (location.hash.startsWith("#?")) history.replaceState(null, "", location.href.split("#")[0]);
  }
  function recall() {
    if (!location.hash.startsWith("#?")) return;
    const found = new URLSearchParams(location.hash.slice(2));
    all("select[data-name]", form).forEach((one, place) => { one.value = found.get(`name${place}`) ?? ""; });
    form.querySelector("select[data-rule]").value = found.get("rule") ?? "";
    form.querySelector("[data-search]").value = found.get("words") ?? "";
    const verdicts = (found.get("verdicts") ?? "").split(" ");
    for (const one of all("input[data-verdict]", form)) one.checked = verdicts.includes(one.dataset.verdict);
  }
  if (form) {
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(apply));
    addEventListener("hashchange", () => { if (location.hash.startsWith("#?")) { recall(); apply(); } });
    recall();
    apply();
  }

  // A click on a column's head sorts its table: numbers as numbers, a second click the other way round.
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], place = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const text = (row) => row.cells[place]?.textContent.trim() ?? "";
    const value = (row) => Number(text(row).replaceAll(",", ""));
    const rows = [...body.rows];
    const numbers = rows.every((row) => text(row) === "" || Number.isFinite(value(row)));
    const order = numbers ? (one, other) => value(one) - value(other)
      : (one, other) => text(one).localeCompare(text(other), undefined, { numeric: true });
    rows.sort((one, other) => (down ? -1 : 1) * order(one, other));
    body.append(...rows);
    for (const each of all("thead th", table)) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }
  for (const head of all("table[data-sort] thead th")) {
    const control = document.createElement("button");
    control.type = "button";
    control.className = "sort";
    control.append(...head.childNodes);
    control.addEventListener("click", () => sort(head));
    head.append(control);
  }

  // A cell opens its findings in a dialog.  Without this script it is a link to the first of them.
  const dialog = byId("opened");
  function open(link) {
    const rule = link.closest("td").dataset.rule;
    byId("opened-title").textContent = link.dataset.title;
    byId("opened-body").replaceChildren(...link.dataset.open.split(" ").map((key, place) => {
      const copy = byId(key).cloneNode(true);
      copy.removeAttribute("id");
      copy.hidden = false;
      copy.open = place === 0;
      for (const row of all("table.judged tbody tr", copy)) row.classList.toggle("asked", row.cells[0].innerText.split(" ")[0] === rule);
      return copy;
    }));
    dialog.showModal();
    dialog.scrollTop = 0;
  }

  async function copy(control) {
    const text = control.closest(".script").querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
    }
    control.textContent = "Copied";
  }

  document.addEventListener("click", (event) => {
    const at = (selector) => event.target.closest(selector);
    if (at("[data-open]")) { event.preventDefault(); open(at("[data-open]")); }
    else if (at("[data-close]") || event.target === dialog) dialog.close();
    else if (at("[data-copy]")) copy(at("[data-copy]"));
  });

  // On paper what somebody has to look at is open.
  addEventListener("beforeprint", () => { for (const finding of all("#incidents > .incident[open] > .body > .finding")) finding.open = true; });

  // A link to a finding opens it; what it lies in is opened by the browser.
  function reveal() {
    const target = location.hash && !location.hash.startsWith("#?") && byId(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) if (each.matches("details")) each.open = true;
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
