// The closed forms of a training step, as `plan` has them: what a rank holds, how much memory it needs, what it
// communicates, and when its stage waits. tests/site/mesh.py holds them against tests/tools/plan_vectors.json.
//
//   const c = modelOf("--num-layers 8 --hidden-size 192 --num-attention-heads 12 ...");   flags of pretrain_gpt
//   const k = {tp: 2, pp: 4, dp: 2, ep: 1, zero: 1, chunks: 1, microBatches: 8, samples: 1, bytes: 2,
//              sequenceParallel: false, recompute: false, wholeExperts: false};           a mesh and its step
//   const stage = stageOf(c, k, 0);
//   memoryOf(c, k, stage);  trafficOf(c, k, stage);  slotsOf(k);  refusalsOf(c, k);
//
// They leave out what the page has no control for: --same-bits, offloading, adapters, shared experts and --recompute-modules.
// Gradients travel in fp32, as NCCL does it. The comment above a form names its C++ counterpart.
"use strict";

const div = (a, b) => Math.floor(a / b);
const roundUp = (n, multiple) => Math.ceil(n / multiple) * multiple;
const range = n => Array.from({length: n}, (_, i) => i);
const sum = list => list.reduce((a, b) => a + b, 0);
const gcd = (a, b) => b ? gcd(b, a % b) : a;

// models/gpt/gpt_config.h
function modelOf(flags) {
  const given = {};
  for (const [, name, value] of flags.matchAll(/--([a-z-]+)(?: (?!-)(\S+))?/g)) given[name] = value ?? true;
  const number = (name, otherwise) => Number(given[name] ?? otherwise);
  const h = number("hidden-size"), heads = number("num-attention-heads"), gated = "swiglu" in given;
  const ffn = number("ffn-hidden-size", gated ? div(h, 24) * 64 : 4 * h), experts = number("num-experts", 1);
  return {
    layers: number("num-layers"), h, heads, keyHeads: number("num-key-value-heads", heads), headDim: h / heads, ffn, gated,
    s: number("seq-length"), positions: "use-rotary-position-embeddings" in given ? 0 : number("max-position-embeddings"),
    vocab: number("vocab-size"), bias: !("disable-bias-linear" in given), rms: given.normalization === "rmsnorm",
    tied: !("untie-embeddings-and-output-weights" in given), parallelResidual: "use-parallel-residual" in given,
    experts, expertFfn: number("moe-ffn-hidden-size", ffn), topk: number("moe-router-topk", 2),
  };
}

// framework/comm/topology.h
const worldOf = k => k.pp * k.dp * k.tp;
const rankOf = (k, at) => (at.pp * k.dp + at.dp) * k.tp + at.tp;
const expertRanks = k => k.wholeExperts ? k.dp * k.tp : k.dp;
const edpOf = k => div(expertRanks(k), k.ep);
const spread = k => k.ep > 1 || k.wholeExperts;
function coordOf(k, rank) {
  const at = {pp: div(rank, k.dp * k.tp), dp: div(rank, k.tp) % k.dp, tp: rank % k.tp};
  const place = k.wholeExperts ? at.dp * k.tp + at.tp : at.dp;
  return {...at, ep: place % k.ep, edp: div(place, k.ep)};
}

// format/layout/partition.h, layers_of_stage
function layersOf(layers, stages, stage) {
  const each = div(layers, stages), more = layers % stages, begin = stage * each + Math.min(stage, more);
  return range(each + (stage < more ? 1 : 0)).map(i => begin + i);
}

const DECAYED = 0, OTHERS = 1, EXPERTS = 2, KINDS = [DECAYED, OTHERS, EXPERTS];  // groups of the optimizer
const replicas = (k, kind) => kind === EXPERTS && spread(k) ? "edp" : "dp";
const replicasSize = (k, kind) => replicas(k, kind) === "edp" ? edpOf(k) : k.dp;

// gpt_parameters.cpp: the parameters of a stage in the optimizer's order, and where each is used (GptStage). `numel` is this
// rank's (numel_on_rank). tp sums the gradient where it is "always" partial or where the "sequence" is cut.
function stageOf(c, k, rank) {
  const chunks = range(k.chunks).map(i => layersOf(c.layers, k.pp * k.chunks, i * k.pp + rank));
  const layers = chunks.flat(), first = rank === 0, last = rank === k.pp - 1, params = [];
  const head = {unit: first + layers.length, chunk: k.chunks - 1};
  const table = roundUp(c.vocab, 128 * k.tp) / k.tp * c.h;
  const add = (place, numel, kind = DECAYED, tpSum = "", twice = false) => params.push({...place, numel, kind, tpSum, twice});
  const norm = place => range(c.rms ? 1 : 2).forEach(() => add(place, c.h, OTHERS, "sequence"));
  const columns = (place, out) => { add(place, c.h * out / k.tp); if (c.bias) add(place, out / k.tp, OTHERS); };
  const rows = (place, width) => { add(place, width / k.tp * c.h); if (c.bias) add(place, c.h, OTHERS, "sequence"); };
  if (first || (c.tied && last)) add(first ? {unit: 0, chunk: 0} : head, table, DECAYED, "", c.tied && first && last);
  if (first && c.positions) add({unit: 0, chunk: 0}, c.positions * c.h, DECAYED, "sequence");
  chunks.flatMap((list, chunk) => list.map(() => chunk)).forEach((chunk, i) => {
    const place = {unit: first + i, chunk};
    norm(place);
    columns(place, (c.heads + 2 * c.keyHeads) * c.headDim);
    rows(place, c.heads * c.headDim);
    norm(place);
    if (c.experts > 1) {
      add(place, c.experts * c.h, DECAYED, "always");  // the router
      range(3).forEach(() => add(place, c.experts * c.expertFfn * c.h / (k.wholeExperts ? 1 : k.tp) / k.ep, EXPERTS));
    } else {
      columns(place, c.ffn * (c.gated ? 2 : 1));
      rows(place, c.ffn);
    }
  });
  if (last) norm(head);
  if (last && !c.tied) add(head, table);
  return {rank, first, last, layers, head, table, params};
}

const BUCKET = 1 << 22;  // zero/memory_form.h, kGradientBucket
const gatheredAtOnce = ranks => Math.min(Math.max(div(8 * BUCKET, ranks), 1), BUCKET);
const groupsOf = (k, stage) => KINDS.map(kind => ({
  kind, ranks: replicasSize(k, kind), params: stage.params.filter(p => p.kind === kind),
})).filter(g => g.params.length).map(g => ({...g, numel: sum(g.params.map(p => p.numel))}));

// zero/memory_form.h, add_kept_bytes. AdamW's state is two moments, and in half precision a master.
function keptOf(c, k, stage) {
  const kept = {parameters: 0, gradients: 0, state: 0, copies: 0};
  for (const {params, ranks, numel} of groupsOf(k, stage)) {
    const part = (n, from) => k.zero >= from ? div(n, ranks) : n, twice = sum(params.map(p => p.twice ? p.numel : 0));
    kept.parameters += part(k.bytes * numel, 3);
    kept.gradients += part(4 * numel, 2);
    kept.state += part((k.bytes === 2 ? 12 : 8) * numel, 1);
    kept.copies += 4 * (k.zero === 2 ? Math.min(twice, div(numel, ranks)) : part(twice, 3));
  }
  return kept;
}

// gpt_memory_form.cpp: the operators of a unit. Each has the bytes that it keeps for the backward, those of its output, of its
// input's and its weight's gradient, of the gradient beside it, and of copies in the forward.
function unitsOf(c, k, stage) {
  const {tp: t, bytes: e} = k, h = c.h, tokens = k.samples * c.s, parts = k.sequenceParallel ? t : 1;
  const whole = tokens * h * e, part = whole / parts, cut = parts > 1 ? whole : 0;
  const op = fields => ({kept: 0, output: 0, input: 0, weight: 0, beside: 0, copies: 0, ...fields});
  const norm = (more = 0) => op({kept: 8 * tokens / parts + more, output: part, input: part});
  const rowParallel = (input, width) => op({
    kept: input, output: part, input, weight: h * width * e, beside: part + cut,
    copies: cut + (t > 1 ? whole : 0) + (c.bias ? part : 0)});
  const columnParallel = width => op({
    kept: part, output: tokens * width * e, input: whole, weight: h * width * e, beside: part + 2 * cut, copies: cut});
  const mlp = () => {
    const width = c.ffn / t, act = tokens * width * e, inner = (c.gated ? 2 : 1) * act;
    return [columnParallel(inner / tokens / e), op({kept: inner, output: act, input: inner, beside: part}),
            rowParallel(act, width)];
  };
  const experts = () => {
    const apart = k.wholeExperts, sent = tokens / (apart ? t : 1), rows = sent * c.topk, f = c.expertFfn / (apart ? 1 : t);
    const own = c.experts / k.ep, moved = rows * h * e, inner = rows * f * e, x = sent * h * e, way = k.ep > 1 ? 2 * moved : 0;
    const orders = 8 * rows * (k.ep > 1 ? 4 : 2), beside = part;
    return [
      op({kept: x + orders + 12 * sent * c.experts, output: moved, input: x, beside: part + way, copies: way}),
      op({kept: moved, output: 2 * inner, input: moved, weight: 2 * own * h * f * e, beside}),
      op({kept: 2 * inner, output: inner, input: 2 * inner, beside}),
      op({kept: inner, output: moved, input: inner, weight: own * h * f * e, beside}),
      op({kept: moved, output: x, input: moved, beside: part + way, copies: way})];
  };
  const layer = () => {
    const queries = c.heads * c.headDim / t, width = queries + 2 * c.keyHeads * c.headDim / t, qkv = tokens * width * e;
    const mixed = tokens * queries * e;
    return [norm(), columnParallel(width), op({kept: qkv + 4 * tokens * c.heads / t, output: mixed, input: qkv, beside: part}),
            rowParallel(mixed, queries), norm(c.parallelResidual ? 0 : part), ...(c.experts > 1 ? experts() : mlp()),
            op({kept: part, output: part, input: part})];
  };
  const units = stage.layers.map(layer), logits = tokens * e * stage.table / h;
  if (stage.first) units.unshift([op({kept: tokens * 9 + part, output: part, weight: k.zero >= 2 ? stage.table * e : whole})]);
  if (stage.last)
    units.push([norm(), op({kept: part, output: logits, input: whole, weight: stage.table * e, beside: 2 * cut, copies: cut}),
                op({kept: logits + 12 * tokens, input: logits})]);
  return {units, part, tokens};
}

// gpt_memory_form.cpp, Buckets: at stages 2 and 3 a bucket lives from the first gradient of its parameters to the last.
function bucketsOf(k, stage) {
  const all = [], add = (params, ranks) => all.push({
    bytes: sum(params.map(p => p.numel)) * k.bytes, sum: sum(params.map(p => div(p.numel * 4, ranks))),
    first: Math.min(...params.map(p => p.unit)), last: Math.max(...params.map(p => p.unit))});
  for (const {params, ranks} of k.zero >= 2 ? groupsOf(k, stage) : []) {
    for (let i = 0, open; i < params.length; add(open, ranks))
      for (open = [params[i++]]; i < params.length && sum(open.map(p => p.numel)) < BUCKET;) open.push(params[i++]);
    for (const p of params) if (p.twice) add([{...p, unit: stage.head.unit}], ranks);
  }
  return all;
}

// gpt_memory_form.cpp, StageMemory. It walks over the operators as the schedule does, min(p - stage, m) forwards and then a
// backward, and notes the greatest sum.
function memoryOf(c, k, stage) {
  const kept = keptOf(c, k, stage), keptSum = sum(Object.values(kept));
  if (k.chunks > 1) return {...kept, kept: keptSum};  // the walk is for one chunk a stage
  const {units, part, tokens} = unitsOf(c, k, stage), buckets = bucketsOf(k, stage);
  const tokensOfStep = stage.first || stage.last ? 16 * tokens * k.microBatches : 0;
  let live = tokensOfStep, peak = 0, inFlight = 0, open = 0, mostOpen = 0;
  const meet = more => { peak = Math.max(peak, live + more); };
  const sizes = [...new Set([k.dp, replicasSize(k, EXPERTS)])];
  const wholeOf = (u, size) => k.bytes * sum(stage.params.filter(
    p => (p.unit === u || (p.twice && u === stage.head.unit)) && replicasSize(k, p.kind) === size).map(p => p.numel));
  // Stage 3: a unit's whole parameters, and the buffers of the next one.
  const gathered = (u, direction) => {
    if (k.zero < 3) return 0;
    const buffers = (v, size) => wholeOf(v, size) + div(wholeOf(v, size), size);
    const most = sum(sizes.map(size => wholeOf(u, size) + Math.max(buffers(u, size), buffers(u + direction, size))));
    inFlight = Math.max(inFlight, most);
    meet(most);
    return sum(sizes.map(size => wholeOf(u, size) + buffers(u + direction, size)));
  };
  const forward = unit => {
    for (const op of unit) {
      meet(op.kept + op.output + op.copies);
      live += op.kept;
    }
  };
  const recomputes = u => k.recompute && (u > 0 || !stage.first);
  const outputOf = u => u === units.length - 1 && stage.last ? 0 : part;
  range(Math.min(k.pp - stage.rank, k.microBatches)).forEach(() => {
    if (!stage.first) live += part;  // received
    units.forEach((unit, u) => {
      const before = live, flying = gathered(u, 1);
      live += flying;
      forward(unit);
      live = recomputes(u) ? before + outputOf(u) : live - flying;
    });
  });
  const activations = live - tokensOfStep;
  if (!stage.last) live += 2 * part;  // the output and its gradient
  for (let u = units.length - 1; u >= 0; --u) {
    const flying = gathered(u, -1), ends = buckets.filter(b => b.first === u);
    let opened = sum(buckets.filter(b => b.last === u).map(b => b.bytes));
    live += flying;
    open += opened;
    mostOpen = Math.max(mostOpen, open);
    if (recomputes(u)) {
      live -= outputOf(u);
      forward(units[u]);
      live += outputOf(u);
    }
    for (const op of [...units[u]].reverse()) {
      meet(op.output + op.input + op.weight + op.beside);
      live -= op.kept;
      if (!op.weight) continue;
      live += opened;
      opened = 0;
      meet(op.input + op.weight + op.beside);
    }
    if (recomputes(u)) live -= outputOf(u);
    meet(Math.max(0, ...ends.map(b => b.sum)) + units[u][0].weight);
    const closed = sum(ends.map(b => b.bytes));
    live -= flying + closed;
    open -= closed;
  }
  live = tokensOfStep;  // stages 1 and 2 gather the new parameters through a buffer
  for (const {ranks, numel} of k.zero === 1 || k.zero === 2 ? groupsOf(k, stage) : [])
    if (ranks > 1) meet(Math.min(div(numel, ranks), gatheredAtOnce(ranks)) * ranks * k.bytes);
  return {...kept, kept: keptSum, activations, rest: peak - activations, peak: keptSum + peak, buckets: mostOpen, inFlight};
}

// gpt_comm_form.cpp: calls and bytes of a rank in a step, by group and verb, on average over dp. docs/scaling.md has the letters.
function trafficOf(c, k, stage) {
  const {tp: t, dp: d, zero: z, bytes: e, microBatches: m} = k, {first, last, params, table} = stage, traffic = {};
  const size = {tp: t, pp: k.pp, dp: d, ep: k.ep, edp: edpOf(k), world: worldOf(k),
                embedding: k.pp > 1 && (first || last) ? 2 : 1};
  const addAll = (group, verb, calls, bytes) => {
    if (size[group] === 1 || calls + bytes === 0) return;
    const total = traffic[`${group} ${verb}`] ??= [0, 0];
    total[0] += calls;
    total[1] += bytes;
  };
  const add = (group, verb, calls, each) => addAll(group, verb, calls, calls * each);
  const tokens = k.samples * c.s, hidden = tokens * c.h * e, L = stage.layers.length;
  const mixtures = c.experts > 1 ? L : 0, products = mixtures ? L : 2 * L;  // that enter a region of tp
  const regions = products + (k.wholeExperts ? 0 : mixtures), forwards = k.recompute ? 2 : 1;
  const enterForward = m * forwards * (regions + last), leaveForward = m * (forwards * regions + first);
  const enterBackward = m * (regions + last), leaveBackward = m * (regions + first);
  if (k.sequenceParallel) {
    add("tp", "all_gather", enterForward + m * (products + last) + leaveBackward, hidden);
    add("tp", "reduce_scatter", leaveForward + enterBackward, hidden);
  } else {
    add("tp", "all_reduce", leaveForward + enterBackward, hidden);
  }
  if (last) add("tp", "all_reduce", 3 * m * forwards, tokens * 4);  // the cross entropy
  const summed = p => p.tpSum === "always" || (p.tpSum === "sequence" && k.sequenceParallel);
  const summedNumel = sum(params.map(p => summed(p) ? p.numel : 0));
  if (summedNumel) addAll("tp", "all_reduce", div(ranksWithSums(k, params, summed), d), div(4 * summedNumel, z ? d : 1));
  const rows = tokens / (k.wholeExperts ? t : 1) * c.topk;
  add("ep", "all_to_all", mixtures * m * forwards, c.experts * 8);
  add("ep", "all_to_all", mixtures * m * (2 * forwards + 2), rows * c.h * e);

  add("pp", "exchange", m * (2 * k.chunks - first - last), k.sequenceParallel ? hidden / t : hidden);
  add("pp", "broadcast", 1, 8);  // the loss

  add("dp", "all_reduce", 1, 8);  // the loss
  const twice = c.tied && first && last;
  for (const {kind, ranks, numel, params: list} of groupsOf(k, stage)) {
    const group = replicas(k, kind), flat = roundUp(numel, 2 * ranks);
    const buckets = bucketCount(list, z < 2);
    if (z === 0) addAll(group, "all_reduce", buckets, roundUp(numel, 2) * 4);
    if (z === 1) addAll(group, "reduce_scatter", buckets, flat * 4);
    if (z >= 2) addAll(group, "reduce_scatter", m * buckets, m * numel * 4);
    if (z === 1 || z === 2) addAll(group, "all_gather", Math.ceil(flat / ranks / gatheredAtOnce(ranks)), flat * e);
  }
  if (twice) add("dp", z ? "reduce_scatter" : "all_reduce", z >= 2 ? m : 1, table * 4);
  for (const unit of z === 3 ? range(stage.head.unit + last) : []) {  // gathered for the forward and for the backward
    const whole = twice && unit === stage.head.unit ? {dp: roundUp(table, d)} : {};
    for (const p of params.filter(each => each.unit === unit)) {
      const group = replicas(k, p.kind);
      whole[group] = (whole[group] ?? 0) + roundUp(p.numel, size[group]);
    }
    for (const group in whole) add(group, "all_gather", 2 * m, whole[group] * e);
  }
  if (c.tied && k.pp > 1 && (first || last)) {
    if (z) addAll("dp", "all_reduce", Math.ceil(table / BUCKET), table * 4);
    add("embedding", "all_reduce", 1, table * 4);
  }
  add("world", "all_reduce", 1, 8);  // the gradient norm
  return traffic;
}

// gpt_comm_form.cpp, has_sums: how many dp ranks have gradients that tp sums, in their partitions if there are any.
function ranksWithSums(k, params, summed) {
  const has = (r, kind) => {
    const own = params.filter(p => p.kind === kind), partition = roundUp(sum(own.map(p => p.numel)), 2 * k.dp) / k.dp;
    let at = 0;
    return own.some(p => {
      const begin = at, end = at += p.numel;
      const here = k.zero === 0 || (k.zero === 3 ? r * Math.ceil(p.numel / k.dp) < p.numel
                                                 : begin < (r + 1) * partition && end > r * partition);
      return here && summed(p);
    });
  };
  return range(k.dp).filter(r => has(r, DECAYED) || has(r, OTHERS)).length;
}

// gpt_comm_form.cpp, buckets. Stages 0 and 1 reduce sums of more elements at once, and chunks together.
function bucketCount(params, wholeSums) {
  const most = wholeSums ? 8 * BUCKET : BUCKET;
  let count = 0, open = most, chunk = 0;
  for (const p of params) {
    if (open >= most || (p.chunk !== chunk && !wholeSums)) open = 0, ++count;
    open += p.numel;
    chunk = p.chunk;
  }
  return count;
}

// pipeline/schedule.cpp, pass and one_f_one_b: the steps of a stage, such as {forward: true, microBatch: 3, chunk: 0}.
function oneFOneB(stage, {pp, microBatches, chunks}) {
  const pass = forward => range(Math.ceil(microBatches / pp)).flatMap(round => range(chunks).flatMap(i =>
    range(Math.min(pp, microBatches - round * pp)).map(j =>
      ({forward, microBatch: round * pp + j, chunk: forward ? i : chunks - 1 - i}))));
  const forward = pass(true), backward = pass(false), later = pp - stage - 1;
  const warmup = Math.min(chunks === 1 ? later : 2 * later + (chunks - 1) * pp, forward.length);
  return [...forward.slice(0, warmup), ...backward.flatMap((step, i) => [...forward.slice(warmup + i, warmup + i + 1), step])];
}

// pipeline/schedule.cpp, slots_of: the slots of each stage, null where it waits. A result is there in the slot after its step's.
function slotsOf(k) {
  const steps = range(k.pp).map(stage => oneFOneB(stage, k)), slots = steps.map(() => []), parts = k.pp * k.chunks;
  const key = (forward, microBatch, part) => `${forward} ${microBatch} ${part}`, ready = new Set();
  while (steps.some(list => list.length)) {
    const done = steps.map((list, stage) => {
      const step = list[0], part = step && step.chunk * k.pp + stage;
      const isEnd = step && part === (step.forward ? 0 : parts - 1);
      return step && (isEnd || ready.has(key(step.forward, step.microBatch, part))) ? list.shift() : null;
    });
    if (!done.some(step => step)) throw new Error("the stages of a pipeline wait for each other");
    done.forEach((step, stage) => {
      slots[stage].push(step);
      if (step) ready.add(key(step.forward, step.microBatch, step.chunk * k.pp + stage + (step.forward ? 1 : -1)));
    });
  }
  return slots;
}
const bubbleOf = slots => slots[0].filter(step => !step).length / slots[0].length;

// The trainer's refusals (gpt_config.cpp, check_mesh, check_chunks and check_expert_mesh; config/validate.cpp, check_experts).
function refusalsOf(c, k) {
  const found = [], divisors = n => range(n).map(i => i + 1).filter(i => n % i === 0).join(", ");
  const require = (holds, message) => { if (!holds) found.push(message); };
  const dense = c.experts === 1;
  require(c.layers >= k.pp, `layers (${c.layers}) must be at least pp (${k.pp})`);
  const cut = [[c.keyHeads === c.heads ? "attention heads" : "key and value heads", c.keyHeads], ["the width of the MLP", c.ffn]];
  if (!dense && !k.wholeExperts) cut.push(["the width of an expert", c.expertFfn]);
  if (k.sequenceParallel) cut.push(["sequence parallelism: the sequence", c.s]);
  const bad = cut.find(([, size]) => size % k.tp), common = cut.map(([, size]) => size).reduce(gcd);
  if (bad) found.push(`${bad[0]} (${bad[1]}) must be divisible by tp (${k.tp}); sizes that work: ${divisors(common)}`);
  require(!k.wholeExperts || k.sequenceParallel || k.tp === 1,
          `whole experts (etp 1 below tp ${k.tp}) need sequence parallelism: each tp rank sends its own part of the sequence`);
  require(k.ep === 1 || !dense, `ep (${k.ep}) has no effect without experts; choose the model with experts, or ep 1`);
  require(!k.wholeExperts || !dense, "whole experts have no effect without experts; choose the model with experts");
  const works = divisors(dense ? 1 : gcd(c.experts, expertRanks(k)));
  require(dense || c.experts % k.ep === 0, `ep (${k.ep}) must divide the experts (${c.experts}); sizes that work: ${works}`);
  require(dense || expertRanks(k) % k.ep === 0, `ep (${k.ep}) must divide the data-parallel size (${k.dp})` +
          `${k.wholeExperts ? ` x tp (${k.tp})` : ""}: experts are spread over these ranks; sizes that work: ${works}`);
  if (k.chunks > 1) {
    require(k.pp > 1, `chunks (${k.chunks}) need stages to cut, got pp 1; use pp 2, or one chunk`);
    require(c.layers % (k.pp * k.chunks) === 0, `layers (${c.layers}) must be divisible by pp x chunks = ${k.pp * k.chunks}; ` +
            `use ${Math.max(1, Math.round(c.layers / (k.pp * k.chunks))) * k.pp * k.chunks} layers`);
    require(k.microBatches % k.pp === 0, `micro-batches (${k.microBatches}) must be divisible by pp (${k.pp}): they go through ` +
            `a chunk in groups of as many as there are stages; use ${roundUp(k.microBatches, k.pp)}`);
  }
  return found;
}
