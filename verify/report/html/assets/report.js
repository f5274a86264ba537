"use strict";
(() => {
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const store = {
    // Some browsers refuse storage to files: the page works without it.
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

  // The record and the sections beyond the first lie in the page as gzip in base64.
  const bytesOf = (id) => Uint8Array.from(atob(find(id).textContent), (char) => char.charCodeAt(0));
  const inflate = (id) =>
    new Response(new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const able = typeof DecompressionStream === "function";
  let source = "";
  const download = find("#download");
  if (download) download.hidden = false; // a large record lies beside the page
  download?.addEventListener("click", () => {
    const link = document.createElement("a");
    const parts = able ? [[source], "application/json", ".json"] : [[bytesOf("#record")], "application/gzip", ".json.gz"];
    link.href = URL.createObjectURL(new Blob(parts[0], { type: parts[1] }));
    link.download = `verify-${find("#record").dataset.id.replace(/[^\w-]/g, "")}${parts[2]}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  // Copy: the buttons are made here, because without a script they would do nothing. The command is also
  // shown, for browsers that refuse to copy.
  const copier = (text, label) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: text });
    button.setAttribute("aria-label", label);
    return button;
  };
  const furnish = (root) => {
    for (const command of all(".command", root)) command.append(copier("copy", "copy this command"));
    for (const elements of all(".elements", root)) {
      if (!find("tr[data-replay]", elements)) continue;
      elements.tHead.rows[0].append(document.createElement("td"));
      for (const row of elements.tBodies[0].rows) {
        const cell = row.insertCell();
        cell.className = "act";
        if (!row.dataset.replay) continue;
        cell.append(copier("copy replay", `copy replay command of input ${row.sectionRowIndex + 1}`));
      }
    }
    for (const drawing of all("svg.curve, svg.histogram", root)) explore(drawing);
  };
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
    const row = button.closest("tr[data-replay]");
    const text = visible(row ? row.dataset.replay : button.previousElementSibling.textContent);
    const done = await write(text);
    button.focus();
    if (row) {
      const line = button.closest("table").nextElementSibling;
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
    const itemOf = (row, order) => ({ row, order, text: row.textContent.toLowerCase() });
    // The address of a row, for copying.
    for (const row of body.rows) {
      const link = Object.assign(document.createElement("a"), { className: "here", href: `#${row.id}`, tabIndex: -1 });
      link.setAttribute("aria-label", "link to this row");
      find(".c-kernel > a", row).after(link);
    }
    const rows = [...body.rows].map(itemOf);
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
    const peers = find("#peers");
    const shown = find("#shown");
    const calm = new Set(["ok", "peer"]);
    const filter = () => {
      const terms = query.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const { row, text } of rows) {
        const standing = row.dataset.standing;
        const wanted = !(attention.checked && calm.has(standing)) && !(standing === "peer" && peers && !peers.checked);
        const keep = wanted && terms.every((term) => text.includes(term));
        row.hidden = !keep;
        count += keep;
      }
      shown.textContent = count === rows.length ? `${count} rows` : `${count} of ${rows.length} rows`;
    };
    // The address has the filter, so that a copied address shows the same rows.
    const search = () => {
      filter();
      history.replaceState(null, "", query.value ? `#filter=${encodeURIComponent(query.value)}` : "#results");
    };
    query.addEventListener("input", search);
    query.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { query.value = ""; search(); }
    });
    const follow = () => {
      const name = location.hash.slice(1);
      if (name.startsWith("filter=")) {
        try { query.value = decodeURIComponent(name.slice("filter=".length)); } catch { return; }
        filter();
        find("#results").scrollIntoView();
      } else if (name.startsWith("row-")) {
        const row = document.getElementById(name);
        if (row?.hidden) {
          query.value = "";
          attention.checked = false;
          if (peers) peers.checked = true;
          filter();
        }
        row?.scrollIntoView({ block: "center" });
      }
    };
    addEventListener("hashchange", follow);
    attention.addEventListener("change", filter);
    peers?.addEventListener("change", filter);
    find("#filter").hidden = false;
    filter(); // browsers restore form fields when a page is reloaded
    follow();
  }

  // Drawings: the text of the bin under the pointer, or of the bin that the arrow keys have reached.
  const number = (value) => (typeof value === "string" ? { nan: "NaN" }[value] ?? value : String(Number(value.toPrecision(6))));
  const size = (value) => (typeof value === "number" && value >= 1e4 ? value.toExponential(2) : number(value));
  const power = (edge) => {
    const large = Math.abs(Number(edge === "inf" ? Infinity : edge === "-inf" ? -Infinity : edge));
    const text = large && large < 1 ? `1/${1 / large}` : large > 8192 && isFinite(large) ? `2^${Math.log2(large)}` : isFinite(large) ? String(large) : "inf";
    return (String(edge).startsWith("-") ? "-" : "") + text;
  };
  const valueOf = (bits, dtype) => {
    const raw = BigInt(bits);
    const view = new DataView(new ArrayBuffer(8));
    if (dtype === "float64") { view.setBigUint64(0, raw); return view.getFloat64(0); }
    if (dtype === "float32" || dtype === "bfloat16") {
      view.setUint32(0, Number(dtype === "float32" ? raw : raw << 16n));
      return view.getFloat32(0);
    }
    const [sign, exponent, mantissa] = [raw >> 15n ? -1 : 1, Number((raw >> 10n) & 31n), Number(raw & 1023n)];
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + mantissa / 1024) : 2 ** -14 * (mantissa / 1024));
  };
  const DIGITS = { float64: 17, float32: 9, float16: 9, bfloat16: 9 };
  const sayings = {
    curve: (drawing) => {
      const { operand, edges, counts, max_ulp: most, worst, baseline } = JSON.parse(drawing.dataset.bins);
      const { dtype } = drawing.dataset;
      return counts.map((count, at) => {
        const where = `${operand} from ${number(edges[at])} to ${number(edges[at + 1])}`;
        if (!count) return `${where}: no input`;
        const decimal = DIGITS[dtype] ? `${Number(valueOf(worst[at], dtype).toPrecision(DIGITS[dtype]))} ` : "";
        const beside = baseline ? `, PyTorch ${size(baseline[at])} ULP` : "";
        return `${where}: ${size(most[at])} ULP at ${operand} = ${decimal}(${worst[at]})${beside}; ${count.toLocaleString("en")} input${count === 1 ? "" : "s"}`;
      });
    },
    histogram: (drawing) => {
      const { edges, counts } = JSON.parse(drawing.dataset.bins);
      return counts.map((count, at) => `${power(edges[at])} to ${power(edges[at + 1])} ULP: ${count.toLocaleString("en")}`);
    },
  };
  const explore = (drawing) => {
    const reading = find(".reading", drawing.parentElement);
    const cursor = find(".cursor", drawing);
    const { width, height } = drawing.viewBox.baseVal;
    const gutter = Number(drawing.dataset.from);
    const label = drawing.getAttribute("aria-label");
    let readings = null;
    let at = Number(drawing.dataset.worst);
    const say = (index) => {
      readings ??= sayings[drawing.getAttribute("class")](drawing);
      at = Math.min(readings.length - 1, Math.max(0, index));
      const step = (width - gutter) / readings.length;
      cursor.setAttribute("d", `M${gutter + at * step} 8h${Math.max(step, 1.5)}v${height - 48}h${-Math.max(step, 1.5)}z`);
      reading.textContent = readings[at];
      drawing.setAttribute("aria-valuenow", at + 1);
      drawing.setAttribute("aria-valuetext", readings[at]);
      drawing.setAttribute("aria-valuemax", readings.length);
    };
    const rest = () => {
      if (document.activeElement === drawing) return;
      cursor.removeAttribute("d");
      reading.textContent = "";
    };
    // A slider, so that the arrow keys move along the bins, with a screen reader too.
    drawing.setAttribute("role", "slider");
    drawing.setAttribute("aria-label", label);
    drawing.setAttribute("aria-valuemin", 1);
    drawing.setAttribute("aria-valuenow", at + 1); // a slider has a value before it is read
    drawing.tabIndex = 0;
    const point = (event) => {
      const box = drawing.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width * width - gutter) / (width - gutter);
      readings ??= sayings[drawing.getAttribute("class")](drawing);
      say(Math.floor(x * readings.length));
    };
    drawing.addEventListener("pointermove", point);
    drawing.addEventListener("pointerdown", point);
    drawing.addEventListener("pointerleave", rest);
    drawing.addEventListener("focus", () => say(at));
    drawing.addEventListener("blur", rest);
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
      const goal = event.key === "Home" ? 0 : event.key === "End" ? Infinity : step === undefined ? null : at + step;
      if (goal === null) return;
      event.preventDefault();
      say(goal);
    });
  };

  // Sections: a link opens its target. On paper everything but groups of peers is open. Packed sections are filled when opened.
  const sections = all("details.kernel");
  let texts = {};
  const fill = (box, markup) => {
    const holder = document.createElement("template");
    holder.innerHTML = markup; // our own: every text in it was escaped when it was written
    box.replaceWith(holder.content);
  };
  const unpack = (section) => {
    const box = find(".packed", section);
    if (!box || !(section.id in texts)) return;
    fill(box, texts[section.id]);
    furnish(section);
  };
  const open = (section) => {
    section.open = true; // its toggle event fills it, unless it was filled before
    const group = section.closest("details.group");
    if (group) group.open = true;
  };
  const reveal = () => {
    const target = location.hash.startsWith("#kernel-") && document.getElementById(location.hash.slice(1));
    if (!target) return;
    unpack(target);
    open(target);
    target.scrollIntoView();
    find("summary", target).focus({ preventScroll: true });
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    // A second click on the link of a section that was closed by hand does not change the hash.
    if (event.target.closest("a[href^='#kernel-']")) setTimeout(reveal);
  });
  reveal();
  const expand = find("#expand");
  if (expand) {
    const label = () => {
      const whole = sections.every((section) => section.open);
      expand.textContent = whole ? "Close all" : "Open all";
      expand.setAttribute("aria-expanded", whole);
    };
    expand.hidden = false;
    expand.addEventListener("click", () => {
      const whole = sections.every((section) => section.open);
      for (const section of sections) {
        if (whole) section.open = false;
        else open(section);
      }
    });
    for (const section of sections) section.addEventListener("toggle", label);
    label();
  }
  for (const section of sections) section.addEventListener("toggle", () => { if (section.open) unpack(section); });
  let closed = [];
  addEventListener("beforeprint", () => {
    const printed = (section) => !section.closest("details.group:not([open])");
    for (const section of sections.filter(printed)) unpack(section);
    closed = all("details:not([open])").filter(printed);
    for (const section of closed) section.open = true;
  });
  addEventListener("afterprint", () => {
    for (const section of closed) section.open = false;
  });

  furnish(document);
  const ready = async () => {
    if (!able) return;
    if (find("#packed")) texts = JSON.parse(await inflate("#packed"));
    if (find("#record")) source = await inflate("#record");
    for (const section of sections) if (section.open) unpack(section);
    document.documentElement.dataset.ready = "yes";
  };
  ready();
})();
