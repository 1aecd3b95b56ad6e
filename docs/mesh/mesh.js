// The page: controls to state, state to the address and to drawings. The numbers come from forms.js.
"use strict";

// Names, and flags of pretrain_gpt. The first is the lessons' model, the next four are those of tests/tools/plan_vectors.json.
// "7B" and "70B" are plan's --params.
const NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0", ROTARY = "--use-rotary-position-embeddings";
const UNTIED = "--untie-embeddings-and-output-weights", EXPERTS_OF = "--num-experts 8 --moe-router-topk";
const LLAMA = `--swiglu --disable-bias-linear --normalization rmsnorm ${ROTARY}`;
const shaped = (layers, h, heads, s, vocab, more) => `--num-layers ${layers} --hidden-size ${h} --num-attention-heads ${heads} ` +
  `--seq-length ${s} --max-position-embeddings ${s} --vocab-size ${vocab} ${more}`;
const MODELS = {
  lesson: ["the lessons' GPT, 64 wide", shaped(4, 64, 4, 32, 256, NO_DROPOUT)],
  gpt: ["GPT-2's kind, 128 wide", shaped(6, 128, 8, 128, 2000, NO_DROPOUT)],
  llama: ["Llama's kind, 192 wide", shaped(8, 192, 12, 128, 1000, `--num-key-value-heads 4 ${LLAMA} ${UNTIED} ${NO_DROPOUT}`)],
  neox: ["GPT-NeoX's kind, 256 wide", shaped(5, 256, 8, 192, 1000,
         `--use-parallel-residual ${ROTARY} ${UNTIED} --hidden-dropout 0.1 --attention-dropout 0`)],
  moe: ["8 experts, 128 wide", shaped(4, 128, 8, 128, 1000, `${LLAMA} ${EXPERTS_OF} 8 --moe-ffn-hidden-size 64 ${NO_DROPOUT}`)],
  "7B": ["7B, 4096 wide", shaped(36, 4096, 32, 4096, 32000, `${LLAMA} ${UNTIED} ${NO_DROPOUT}`)],
  "8x7B": ["8 experts, 2 for each token, 4096 wide", shaped(32, 4096, 32, 4096, 32000,
           `--num-key-value-heads 8 ${LLAMA} ${UNTIED} ${EXPERTS_OF} 2 --moe-ffn-hidden-size 14336 ${NO_DROPOUT}`)],
  "70B": ["70B, 9216 wide", shaped(68, 9216, 72, 4096, 32000, `${LLAMA} ${UNTIED} ${NO_DROPOUT}`)],
};
const LARGE = ["7B", "8x7B", "70B"];  // in bf16 unless one says otherwise
const START = {model: "lesson", layers: 4, tp: 2, pp: 2, dp: 2, ep: 1, zero: 1, m: 4, b: 1, chunks: 1,
               half: false, sp: false, recompute: false, etp1: false, rank: 0};
const MOST_CELLS = 256;
const state = {...START};
const by = id => document.getElementById(id);

const escaped = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
const grouped = n => n.toLocaleString("en-US").replaceAll(",", " ");
function readable(bytes) {
  const unit = Math.min(4, Math.max(0, Math.floor(Math.log2(bytes || 1) / 10)));
  return `${Number((bytes / 2 ** (10 * unit)).toPrecision(4))} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
const listed = list => list.length < 2 ? String(list) : `${list[0]} to ${list.at(-1)}`;
const percent = part => `${(100 * part).toFixed(1)} %`;

// The configuration of the forms.
const flagsOf = () => MODELS[state.model][1].replace(/--num-layers \d+/, `--num-layers ${state.layers}`);
function meshOf() {
  const {tp, pp, dp, ep, zero, chunks, recompute} = state;
  return {tp, pp, dp, ep, zero, chunks, recompute, microBatches: state.m, samples: state.b, bytes: state.half ? 2 : 4,
          sequenceParallel: state.sp && tp > 1, wholeExperts: state.etp1 && tp > 1};
}

// The address: what differs from the start.
function readAddress(address) {
  const given = Object.fromEntries(new URLSearchParams(address));
  const model = MODELS[given.model] ? given.model : START.model;
  Object.assign(state, START, {model, layers: modelOf(MODELS[model][1]).layers});
  for (const [key, value] of Object.entries(given)) {
    if (typeof START[key] === "boolean") state[key] = value === "1";
    const {min = 0, max = Infinity} = by(key) ?? {};
    if (typeof START[key] === "number" && /^\d+$/.test(value)) state[key] = Math.min(Math.max(Number(value), min), max);
  }
}
function addressOf() {
  const usual = {...START, layers: modelOf(MODELS[state.model][1]).layers};
  const changed = Object.keys(START).filter(key => state[key] !== usual[key]);
  return changed.map(key => `${key}=${key === "model" ? state[key] : Number(state[key])}`).join("&");
}
let written;
function writeAddress() {  // browsers refuse to do it more than some times a second
  clearTimeout(written);
  written = setTimeout(() => history.replaceState(null, "", addressOf() ? `#${addressOf()}` : location.pathname), 200);
}

const box = (x, y, width, height, name, title = "") =>
  `<rect x="${x.toFixed(2)}" y="${y.toFixed(2)}" width="${Math.max(0, width).toFixed(2)}" height="${height}" class="${name}">` +
  `${title && `<title>${escaped(title)}</title>`}</rect>`;
const word = (x, y, text, name = "", anchor = "start") =>
  `<text x="${x.toFixed(2)}" y="${y}" class="${name}" text-anchor="${anchor}">${escaped(text)}</text>`;
function draw(id, height, title, description, body) {
  const width = by(id).clientWidth;
  by(id).innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="${id}-t ${id}-d"><title id="${id}-t">` +
    `${escaped(title)}</title><desc id="${id}-d">${escaped(description)}</desc>${body(width)}</svg>`;
}

// The groups that a rank shares with `at`, as text.
function sharedGroups(k, c, at, other) {
  const differs = key => at[key] !== other[key], stage = !differs("pp");
  return [stage && !differs("dp") && "tp", stage && !differs("tp") && "dp", !differs("dp") && !differs("tp") && "pp",
          c.experts > 1 && k.ep > 1 && stage && !differs("edp") && (k.wholeExperts || !differs("tp")) && "ep"].filter(Boolean);
}

function drawMesh(c, k) {
  const own = coordOf(k, state.rank).dp, most = Math.max(1, div(MOST_CELLS, k.tp * k.pp));
  const replicasDrawn = range(k.dp).slice(0, most);
  if (own >= most) replicasDrawn[most - 1] = own;
  const cell = at => `<button type="button" data-rank="${rankOf(k, at)}"></button>`;
  by("mesh").innerHTML = replicasDrawn.map(dp => `<div class="replica" style="--tp:${k.tp}"><span>dp ${dp}</span>` +
    range(k.pp).flatMap(pp => range(k.tp).map(tp => cell({pp, dp, tp}))).join("") + "</div>").join("");
  by("drawn").textContent = most < k.dp ? `${most} of ${k.dp} dp ranks are drawn. The others are like them.` : "";
  highlight(state.rank);
}
let lit;  // the rank of which groups are marked
function highlight(rank) {
  lit = rank;
  const k = meshOf(), c = modelOf(flagsOf()), at = coordOf(k, rank);
  for (const cell of by("mesh").querySelectorAll("button")) {
    const number = Number(cell.dataset.rank), place = coordOf(k, number);
    const groups = number === rank ? [] : sharedGroups(k, c, at, place);
    cell.className = number === rank ? "own" : groups.length ? "kin" : "";
    cell.tabIndex = number === state.rank ? 0 : -1;
    cell.innerHTML = `${number}<small>${place.pp},${place.dp},${place.tp}</small><small>${groups.join(" ")}</small>`;
    cell.setAttribute("aria-pressed", number === state.rank);
    cell.setAttribute("aria-label", `rank ${number}: pp ${place.pp}, dp ${place.dp}, tp ${place.tp}` +
                      (groups.length ? `; ${groups.join(" and ")} group of rank ${rank}` : ""));
  }
}

const ZERO = [["parameters", 3], ["gradients", 2], ["optimizer state", 1]];  // and the first stage that has a partition

// The holdings of a rank in words.
function holdingsOf(c, k, stage, at, cut) {
  const slice = (size, part, of) => `${listed([part * size / of, (part + 1) * size / of - 1])} of ${size}`;
  const qkv = (c.heads + 2 * c.keyHeads) * c.headDim, experts = c.experts > 1, own = c.experts / k.ep;
  const layers = k.chunks > 1 ? stage.layers.join(", ") : listed(stage.layers);
  const ends = [stage.first && "the embedding", stage.last && (c.tied ? "the head (the embedding's table)" : "the head")];
  const lines = [
    [`${stage.layers.length > 1 ? "layers" : "layer"} ${layers} of 0 to ${c.layers - 1}`, ...ends.filter(Boolean)].join(", and "),
    `attention: rows ${slice(qkv, at.tp, k.tp)} of queries, keys and values, columns ` +
      `${slice(c.heads * c.headDim, at.tp, k.tp)} of the output`,
    (experts ? `experts ${listed(range(own).map(i => at.ep * own + i))} of 0 to ${c.experts - 1}, of each ` : "MLP: ") +
      `rows ${slice(experts ? c.expertFfn : c.ffn, ...cut)} into it, the same columns out of it`];
  for (const group of new Set(stage.params.map(p => replicas(k, p.kind)))) {
    const [part, of] = group === "edp" ? [at.edp, edpOf(k)] : [at.dp, k.dp];
    const whose = group === "edp" ? "of the experts' " : spread(k) && experts ? "of the others' " : "";
    const share = from => k.zero >= from && of > 1 ? `part ${part} of ${of}` : "all";
    lines.push(whose + ZERO.map(([name, from]) => `${name}: ${share(from)}`).join(", "));
  }
  return lines;
}

function drawHolds(c, k, stage, at) {
  const cut = c.experts > 1 && k.wholeExperts ? [0, 1] : [at.tp, k.tp], lines = holdingsOf(c, k, stage, at, cut);
  by("parts").innerHTML = lines.map(line => `<li>${escaped(line)}</li>`).join("");
  draw("holds", 158, `What rank ${state.rank} holds`, lines.join(". "), w => {
    const each = w / c.layers, gap = w / 4, side = Math.min(60, gap - 10), mlp = c.experts > 1 ? "expert" : "MLP";
    const layers = range(c.layers).map(i =>
      box(i * each, 18, each - (each > 4 ? 2 : 0), 14, stage.layers.includes(i) ? "part" : "empty", `layer ${i}`));
    const matrices = ["q, k, v", "output", `${mlp} in`, `${mlp} out`].map((name, i) => {
      const [part, of] = i < 2 ? [at.tp, k.tp] : cut, x = i * gap;
      return word(x, 52, name) + box(x, 58, side, 44, "empty") + (i % 2 ? box(x + part * side / of, 58, side / of, 44, "part")
                                                                        : box(x, 58 + part * 44 / of, side, 44 / of, "part"));
    });
    const states = ZERO.map(([name, from], i) => {
      const x = i * w / 3, length = w / 3 - 8, of = k.zero >= from ? k.dp : 1, part = of > 1 ? at.dp : 0;
      return word(x, 126, name) + box(x, 132, length, 14, "empty") +
        box(x + part * length / of, 132, Math.max(1.5, length / of), 14, "part");
    });
    return word(0, 12, "layers") + [...layers, ...matrices, ...states].join("");
  });
}

function drawSchedule(k, at) {
  const slots = slotsOf(k), count = slots[0].length, bubble = bubbleOf(slots), row = k.pp > 8 ? 15 : 22;
  by("bubble").textContent = "F is a forward and B a backward of one micro-batch. " +
    `Each stage waits in ${Math.round(bubble * count)} of ${count} slots: the bubble is ${percent(bubble)}` +
    `${k.chunks === 1 ? ", (pp - 1) / (micro-batches + pp - 1)." : ". Odd chunks have colours of their own."}`;
  const name = step => step ? `${step.forward ? "F" : "B"}${step.microBatch}${"'".repeat(step.chunk)}` : ".";
  const rows = slots.map((list, i) => `stage ${i}: ${list.map(name).join(" ")}`);
  const description = count > 64 ? "a row for each stage" : rows.join("; ");
  draw("schedule", k.pp * row, `1F1B on ${k.pp} stages with ${k.microBatches} micro-batches`, description, w => {
    const left = 26, each = (w - left) / count;
    return slots.map((list, i) => word(0, i * row + row - 7, `${i}`, i === at.pp ? "mark" : "") + list.map((step, slot) => {
      const x = left + slot * each, style = step ? `${step.forward ? "f" : "b"}${step.chunk % 2 ? " odd" : ""}` : "empty";
      return box(x, i * row, each - (each > 5 ? 1 : 0), row - 2, style) +
        (step && each > 9 * name(step).length ? word(x + each / 2, i * row + row - 7, name(step), "", "middle") : "");
    }).join("")).join("");
  });
}

const PARTS = [["parameters", "weights"], ["gradients", "gradients"], ["state", "optimizer state"], ["copies", "tied copies"],
               ["activations", "activations"], ["rest", "buffers and gradients at the peak"]];
const rowOf = (cells, name = "") => `<tr class="${name}">${cells.map(cell => `<td>${cell}</td>`).join("")}</tr>`;

const totalOf = form => form.peak ?? form.kept;

function drawMemory(forms, at) {
  const most = Math.max(...forms.map(totalOf)), own = forms[at.pp], row = forms.length > 8 ? 14 : 22;
  by("memory-note").textContent = "A bar is a stage. Its ranks are alike. " + (own.peak === undefined
    ? "The form of activations is for one chunk a stage, so this is what a rank keeps between steps."
    : "Activations count when the first backward begins.");
  const totals = forms.map((form, i) => `stage ${i}: ${readable(totalOf(form))}`).join("; ");
  draw("bars", forms.length * row, "Memory of a rank of each stage", totals, w => {
    const left = 26, scale = (w - left) / most;
    return forms.map((form, i) => {
      let x = left;
      return word(0, i * row + row - 6, `${i}`, i === at.pp ? "mark" : "") + PARTS.map(([key, name], part) => {
        const width = Math.max(0, form[key] ?? 0) * scale;
        x += width;
        return box(x - width, i * row, width, row - 3, `c${part}`, `${name}: ${readable(form[key] ?? 0)}`);
      }).join("");
    }).join("");
  });
  const line = (name, bytes, style) => rowOf([name, grouped(bytes), readable(bytes)], style);
  by("memory").tBodies[0].innerHTML = PARTS.map(([key, name], part) => own[key] === undefined ? "" :
    line(`<span class="key" style="background:var(--c${part})"></span>${name}`, own[key])).join("") +
    line(own.peak === undefined ? "kept between steps" : "peak", totalOf(own), "sum") +
    (own.buckets ? line("of it gradient buckets, at most", own.buckets) : "") +
    (own.inFlight ? line("of it gathered layers, at most", own.inFlight) : "");
}

function drawTraffic(traffic) {
  const line = (group, verb, calls, bytes, style) => rowOf([group, verb, grouped(calls), grouped(bytes), readable(bytes)], style);
  by("traffic").tBodies[0].innerHTML = ["tp", "pp", "dp", "ep", "edp", "embedding", "world"].map(group => {
    const rows = Object.entries(traffic).filter(([key]) => key.split(" ")[0] === group);
    const total = i => sum(rows.map(([, sums]) => sums[i]));
    return rows.map(([key, sums]) => line(...key.split(" "), ...sums)).join("") +
      (rows.length > 1 ? line(group, "sum", total(0), total(1), "sum") : "");
  }).join("") || rowOf(["one rank sends nothing", "", "", "", ""]);
}

function commandOf(k) {
  if (k.chunks > 1) return "plan reckons with one chunk a stage.";
  const name = `tp${k.tp}-pp${k.pp}-dp${k.dp}-zero${k.zero}-b${k.samples}` + (k.ep > 1 ? `-ep${k.ep}` : "") +
    (k.wholeExperts ? "-etp1" : "") + (k.sequenceParallel ? "-sp" : "") + (k.recompute ? "-recompute" : "");
  return `plan ${flagsOf()} --tensor-model-parallel-size ${k.tp} --pipeline-model-parallel-size ${k.pp} --zero-stage ${k.zero} ` +
    `--micro-batch-size ${k.samples} --global-batch-size ${k.samples * k.dp * k.microBatches} --gpus ${worldOf(k)} ` +
    `--preset ${k.bytes === 2 ? "h100" : "cpu"} --explain ${name}`;
}

// Screen readers repeat what is written anew.
function say(id, text) {
  if (by(id).textContent !== text) by(id).textContent = text;
}

function show() {
  const k = meshOf(), c = modelOf(flagsOf()), refused = refusalsOf(c, k);
  state.rank = Math.min(state.rank, worldOf(k) - 1);
  for (const [key, value] of Object.entries(state)) {
    const control = by(key);
    if (!control) continue;
    if (typeof value === "boolean") control.checked = value; else control.value = value;
    if (control.type === "range") control.nextElementSibling.textContent = value;
  }
  writeAddress();
  drawMesh(c, k);
  by("refused").hidden = !refused.length;
  say("refused", refused.map(message => `Refused: ${message}.`).join("\n"));
  by("legal").hidden = refused.length > 0;
  if (refused.length) return say("summary", `${worldOf(k)} ranks.`);
  const at = coordOf(k, state.rank), stages = range(k.pp).map(pp => stageOf(c, k, pp));
  const forms = stages.map(stage => memoryOf(c, k, stage)), own = forms[at.pp], traffic = trafficOf(c, k, stages[at.pp]);
  for (const place of document.querySelectorAll(".rank")) place.textContent = state.rank;
  say("summary", `${worldOf(k)} ranks. Rank ${state.rank} is pp ${at.pp}, dp ${at.dp}, tp ${at.tp}. It needs ` +
    `${readable(totalOf(own))}${own.peak ? "" : " and activations"}, waits ${percent(bubbleOf(slotsOf(k)))} of the slots, and ` +
    `communicates ${readable(sum(Object.values(traffic).map(([, bytes]) => bytes)))} a step.`);
  drawHolds(c, k, stages[at.pp], at);
  drawSchedule(k, at);
  drawMemory(forms, at);
  drawTraffic(traffic);
  by("command").textContent = commandOf(k);
}

function choose(rank) {
  state.rank = rank;
  show();
  by("mesh").querySelector(`[data-rank="${rank}"]`).focus();
}

// The site's choice of light or dark, which its theme keeps under this key.
try {
  const kept = JSON.parse(localStorage.getItem(`${new URL("../..", location).pathname}.__palette`));
  if (kept) document.documentElement.dataset.look = kept.color.scheme === "slate" ? "dark" : "light";
} catch { /* no storage: the system's choice */ }

for (const [key, [name]] of Object.entries(MODELS)) by("model").add(new Option(name, key));
by("controls").addEventListener("input", event => {
  const {id, type, value, checked} = event.target;
  state[id] = type === "checkbox" ? checked : type === "range" ? Number(value) : value;
  if (id === "model") {
    state.layers = modelOf(MODELS[value][1]).layers;
    state.half = LARGE.includes(value);
  }
  show();
});
by("controls").addEventListener("submit", event => event.preventDefault());
const rankAt = event => event.target.closest("[data-rank]")?.dataset.rank;
by("mesh").addEventListener("click", event => rankAt(event) && choose(Number(rankAt(event))));
by("mesh").addEventListener("pointermove", event => {
  const rank = Number(rankAt(event) ?? state.rank);
  if (rank !== lit) highlight(rank);
});
by("mesh").addEventListener("pointerleave", () => highlight(state.rank));
by("mesh").addEventListener("keydown", event => {
  const k = meshOf(), step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -k.dp * k.tp, ArrowDown: k.dp * k.tp}[event.key];
  if (!step) return;
  event.preventDefault();
  const next = state.rank + step;
  if (next >= 0 && next < worldOf(k)) choose(next);
});
addEventListener("hashchange", () => { readAddress(location.hash.slice(1)); show(); });
let width = innerWidth;
addEventListener("resize", () => { if (width !== innerWidth) width = innerWidth, show(); });
readAddress(location.hash.slice(1));
show();
