"use strict";
(() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const store = {
    // storage is refused to files in some browsers: the page works without
    get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* not kept */ } },
  };

  // Theme: auto follows the system.
  const themes = ["auto", "light", "dark"];
  const themeButton = find("#theme");
  const setTheme = (name) => {
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    themeButton.textContent = `Theme: ${name}`;
  };
  let theme = themes.includes(store.get("verify-theme")) ? store.get("verify-theme") : "auto";
  setTheme(theme);
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    setTheme(theme);
    store.set("verify-theme", theme);
  });

  // The record: one copy of it, for the download and for the replay commands.
  const source = find("#record").textContent;
  let record = null;
  const parsed = () => (record ??= JSON.parse(source));
  const download = find("#download");
  download.hidden = false;
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([source + "\n"], { type: "application/json" }));
    link.download = `verify-${parsed().id.replace(/[^\w-]/g, "")}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  const at = (path) => {
    const [kernel, result] = path.split(".");
    return parsed().kernels[kernel].results[result];
  };

  // Copy: the buttons are made here, because without a script they would do nothing. The command is also
  // shown, for browsers that refuse to copy.
  const copier = (text, label) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: text });
    button.setAttribute("aria-label", label);
    return button;
  };
  for (const command of all(".command")) command.append(copier("copy", "copy this command"));
  for (const elements of all(".elements")) {
    elements.tHead.rows[0].append(document.createElement("td"));
    for (const row of elements.tBodies[0].rows) {
      const cell = row.insertCell();
      cell.className = "act";
      cell.append(copier("copy replay", `copy the replay command of worst input ${row.sectionRowIndex + 1}`));
    }
  }
  const visible = (text) =>
    text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  const write = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "unseen";
      document.body.append(area);
      area.select();
      let done = false;
      try { done = document.execCommand("copy"); } catch { /* shown instead */ }
      area.remove();
      return done;
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const elements = button.closest(".elements");
    const row = button.closest("tr");
    const text = visible(elements ? at(elements.dataset.path).worst[row.sectionRowIndex].replay : button.previousElementSibling.textContent);
    const done = await write(text);
    button.focus();
    if (elements) {
      const line = find(".copied", button.closest(".result"));
      line.replaceChildren(done ? "Copied: " : "Copy this: ", Object.assign(document.createElement("code"), { textContent: text }));
      line.hidden = false;
      line.setAttribute("role", "status");
    }
    const label = button.textContent;
    if (label === "copied" || label === "not copied") return;
    button.textContent = done ? "copied" : "not copied";
    setTimeout(() => { button.textContent = label; }, 1600);
  });

  // Sorting and filtering.
  const table = find("#table");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row, order) => ({ row, order, text: row.textContent.toLowerCase() }));
    const heads = all("th[data-key]", table);
    const cellOf = (row, key) => {
      const cell = find(`.c-${key}`, row);
      return cell.dataset.sort ?? (find("a", cell) ?? cell).textContent.toLowerCase();
    };
    const keyOf = (item, head) => cellOf(item.row, head.dataset.key);
    const sortBy = (head, direction) => {
      const numeric = "numeric" in head.dataset;
      const sign = direction === "descending" ? -1 : 1;
      const ordered = [...rows].sort((a, b) => {
        const [x, y] = [keyOf(a, head), keyOf(b, head)];
        if (x === "" || y === "") return (x === "") - (y === "") || a.order - b.order; // nothing to compare: last
        const less = numeric ? Math.sign((+x > +y) - (+x < +y)) : x.localeCompare(y, "en", { numeric: true });
        return sign * less || a.order - b.order;
      });
      body.append(...ordered.map((item) => item.row));
      for (const other of heads) other.setAttribute("aria-sort", other === head ? direction : "none");
    };
    for (const head of heads) {
      find("button", head).addEventListener("click", () => {
        const first = "numeric" in head.dataset ? "descending" : "ascending";
        const second = first === "descending" ? "ascending" : "descending";
        sortBy(head, head.getAttribute("aria-sort") === first ? second : first);
      });
    }
    const query = find("#query");
    const attention = find("#attention");
    const shown = find("#shown");
    const calm = new Set(["ok", "peer"]);
    const filter = () => {
      const terms = query.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const { row, text } of rows) {
        const keep = terms.every((term) => text.includes(term)) && !(attention.checked && calm.has(row.dataset.standing));
        row.hidden = !keep;
        count += keep;
      }
      shown.textContent = count === rows.length ? `${count} rows` : `${count} of ${rows.length} rows`;
    };
    query.addEventListener("input", filter);
    query.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { query.value = ""; filter(); }
    });
    attention.addEventListener("change", filter);
    find("#filter").hidden = false;
    filter(); // browsers restore form fields when a page is reloaded
  }

  // Histograms: what lies under the pointer, from the record.
  const power = (edge) => {
    const size = Math.abs(edge);
    const text = size && size < 1 ? `1/${1 / size}` : size > 8192 && isFinite(size) ? `2^${Math.log2(size)}` : String(size);
    return (edge < 0 ? "-" : "") + text;
  };
  for (const plot of all("svg.histogram")) {
    const reading = find(".reading", plot.parentElement);
    plot.addEventListener("pointermove", (event) => {
      const { edges, counts } = at(plot.dataset.path).histogram;
      const box = plot.getBoundingClientRect();
      const width = plot.viewBox.baseVal.width;
      const gutter = Number(plot.dataset.from);
      const x = ((event.clientX - box.left) / box.width * width - gutter) / (width - gutter);
      const index = Math.min(counts.length - 1, Math.max(0, Math.floor(x * counts.length)));
      reading.textContent = `${power(edges[index])} to ${power(edges[index + 1])} ULP: ${counts[index].toLocaleString("en")}`;
    });
    plot.addEventListener("pointerleave", () => { reading.textContent = ""; });
  }

  // Sections: a link opens what it points to; everything is open on paper.
  const sections = all("details.kernel");
  const reveal = () => {
    const target = location.hash.startsWith("#kernel-") && document.getElementById(location.hash.slice(1));
    if (!target) return;
    target.open = true;
    target.scrollIntoView();
    find("summary", target).focus({ preventScroll: true });
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    // a second click on the link of a section that was closed by hand: the hash does not change
    if (event.target.closest("a[href^='#kernel-']")) setTimeout(reveal);
  });
  reveal();
  const expand = find("#expand");
  if (expand) {
    const label = () => {
      const open = sections.every((section) => section.open);
      expand.textContent = open ? "Close all" : "Open all";
      expand.setAttribute("aria-expanded", open);
    };
    expand.hidden = false;
    expand.addEventListener("click", () => {
      const open = !sections.every((section) => section.open);
      for (const section of sections) section.open = open;
    });
    for (const section of sections) section.addEventListener("toggle", label);
    label();
  }
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])");
    for (const section of closed) section.open = true;
  });
  addEventListener("afterprint", () => {
    for (const section of closed) section.open = false;
  });
})();
