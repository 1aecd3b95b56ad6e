#!/usr/bin/env python3
"""mesh.py BROWSER PAGE [PLAN]: drives docs/mesh/index.html in a browser, and holds its numbers against those of plan.

Each of tests/tools/plan_vectors.json is chosen by the page's address. The bytes that the page shows, and those of its forms for the other
stages, must be the file's. The schedules are those of tests/pipeline/schedule_test.cpp and of lesson 5. Keys, mouse and taps must move
what they should. With the executable PLAN, the page must also accept the meshes that plan finds legal, no others, and have their numbers.
"""
import copy
import json
import pathlib
import re
import subprocess
import sys

from browser import Browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ["parameters", "gradients", "optimizer state", "tied copies", "peak"]
MESH = re.compile(r"tp(\d+)-pp(\d+)-dp(\d+)-zero(\d)-b(\d+)(?:-ep(\d+))?(-etp1)?(-sp)?(-recompute)?$")
PLANS = (("7B", 16, 64, 8), ("8x7B", 8, 16, 8))  # model, ranks, samples, and which part of the meshes' numbers is compared

NUMBERS = """(list => list.map(([flags, k, stages]) => stages.map(first => {
  const c = modelOf(flags), stage = stageOf(c, k, first), form = memoryOf(c, k, stage);
  return {first, memory: [form.parameters, form.gradients, form.state, form.copies, form.peak], traffic: trafficOf(c, k, stage)};
})))"""
SHOWN = """(list => list.map(address => {
  if (address !== null) {
    readAddress(address);
    show();
  }
  const cells = id => [...by(id).tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent));
  const number = text => Number(text.replaceAll(' ', ''));
  const memory = Object.fromEntries(cells('memory').map(([part, bytes]) => [part, number(bytes)]));
  const rows = cells('traffic').filter(row => row[1] && row[1] !== 'sum');
  return {refused: by('refused').textContent, wide: document.documentElement.scrollWidth > screen.width,
          memory: ['weights', 'gradients', 'optimizer state', 'tied copies', 'peak'].map(part => memory[part]),
          traffic: Object.fromEntries(rows.map(([group, verb, calls, bytes]) => [group + ' ' + verb, [number(calls), number(bytes)]]))};
}))"""
LEGAL = """(([model, ranks, samples]) => {
  const c = modelOf(MODELS[model][1]), sizes = n => range(n).map(i => i + 1).filter(i => n % i === 0), found = {};
  for (const tp of sizes(ranks)) for (const pp of sizes(ranks / tp)) for (const sp of tp > 1 ? [0, 1] : [0])
  for (const ep of c.experts > 1 ? sizes(ranks) : [1]) for (const etp1 of c.experts > 1 && sp ? [0, 1] : [0])
  for (const b of [1, 2, 4, 8, 16]) for (const zero of [0, 1, 2, 3]) for (const recompute of [false, true]) {
    const dp = ranks / tp / pp, k = {tp, pp, dp, ep, zero, samples: b, chunks: 1, microBatches: samples / b / dp, bytes: 2, recompute,
                                     sequenceParallel: sp === 1, wholeExperts: etp1 === 1};
    if (samples % (b * dp) || refusalsOf(c, k).length || (zero && dp === 1 && (c.experts === 1 || edpOf(k) === 1))) continue;
    found[commandOf(k).split(' ').at(-1)] = k;
  }
  return found;
})"""


def fail(text):
    sys.exit(f"FAIL: {text}")


def call(page, function, argument):
    return page.evaluate(f"{function}({json.dumps(argument)})")


def mesh_of(name, ranks, samples):
    """The page's mesh for a name of plan's."""
    tp, pp, dp, zero, b, ep, etp, sp, recompute = MESH.match(name).groups()
    k = {"tp": int(tp), "pp": int(pp), "dp": int(dp), "ep": int(ep or 1), "zero": int(zero), "samples": int(b), "chunks": 1, "bytes": 4,
         "wholeExperts": bool(etp), "sequenceParallel": bool(sp), "recompute": bool(recompute)}
    assert k["tp"] * k["pp"] * k["dp"] == ranks
    return k | {"microBatches": samples // (k["samples"] * k["dp"])}


def address_of(model, k, stage=0):
    short = {"microBatches": "m", "samples": "b", "sequenceParallel": "sp", "wholeExperts": "etp1"}
    rank = stage * k["dp"] * k["tp"]
    return "&".join([f"model={model}", f"rank={rank}"] + [f"{short.get(key, key)}={int(k[key])}" for key in k if key != "bytes"])


def wrong_cases(page, vectors):
    """The cases in which the page, or its forms, have other numbers than the file."""
    cases = vectors["cases"]
    meshes = [mesh_of(case["mesh"], case["gpus"], 4 * case["gpus"]) for case in cases]
    firsts = [[stage["first"] for stage in case["stages"]] for case in cases]
    forms = call(page, NUMBERS, [[vectors["models"][case["model"]], k, first] for case, k, first in zip(cases, meshes, firsts)])
    shown = call(page, SHOWN, [address_of(case["model"], k, first[-1]) for case, k, first in zip(cases, meshes, firsts)])
    wrong = []
    for case, stages, seen in zip(cases, forms, shown):
        last = case["stages"][-1]
        if stages != case["stages"] or seen["refused"] or seen["wide"] or any(seen[each] != last[each] for each in ("memory", "traffic")):
            wrong.append(f"{case['model']} on {case['mesh']}: forms {stages}, page {seen}, expected {case['stages']}")
    return wrong


def check_vectors(page):
    vectors = json.loads((ROOT / "tests/tools/plan_vectors.json").read_text())
    for name, flags in vectors["models"].items():
        ours = page.evaluate(f"MODELS.{name}[1]")
        if sorted(ours.split(" --")) != sorted(flags.split(" --")):
            fail(f"the page's model {name} is {ours}, expected {flags}")
    planted = copy.deepcopy(vectors | {"cases": vectors["cases"][7:9]})
    planted["cases"][0]["stages"][0]["memory"][4] += 4
    planted["cases"][1]["stages"][-1]["traffic"]["pp exchange"][0] += 1
    if len(wrong_cases(page, planted)) != 2:
        fail("this test does not see two wrong numbers")
    if wrong := wrong_cases(page, vectors):
        fail(f"{len(wrong)} of {len(vectors['cases'])} meshes: {wrong[0]}")
    print(f"ok: the page has the memory and the traffic of all {len(vectors['cases'])} meshes")
    return {(case["model"], case["mesh"]): case["stages"][0] for case in vectors["cases"]}


def check_schedules(page):
    text = (ROOT / "tests/pipeline/schedule_test.cpp").read_text()
    figures = re.findall(r'one_f_one_b\((\d), \{\.stages = (\d), \.micro_batches = (\d)(?:, \.chunks = (\d))?\}\)\),\s*"([^"]+)"', text)
    name = "step => step ? (step.forward ? 'F' : 'B') + step.microBatch + (step.chunk ? \"'\" : '') : '.'"
    for stage, stages, n, chunks, steps in figures:
        found = page.evaluate(f"oneFOneB({stage}, {{pp: {stages}, microBatches: {n}, chunks: {chunks or 1}}}).map({name}).join(' ')")
        if found != steps.strip():
            fail(f"stage {stage} of {stages}: {found}, expected {steps}")
    lesson = (ROOT / "tutorials/05_pipeline_parallel/README.md").read_text().split("the same in slots of one size")[1]
    rows = re.findall(r"^stage \d: (.*)$", lesson, re.M)[:4]
    found = page.evaluate(f"slotsOf({{pp: 4, microBatches: 8, chunks: 1}}).map(list => list.map({name}).map(s => s[0]).join(' '))")
    if found != rows or len(figures) < 2:
        fail(f"the slots of lesson 5: {found}, expected {rows}")
    odd = page.evaluate("""[1, 2, 3, 6].flatMap(pp => [1, 2, 4].flatMap(chunks => [1, 6, 18].map(m => ({pp, chunks, microBatches: m}))))
      .filter(k => k.chunks === 1 || (k.pp > 1 && k.microBatches % k.pp === 0))
      .filter(k => slotsOf(k).some(list => list.filter(step => !step).length !== 2 * (k.pp - 1)))""")
    if odd:
        fail(f"a stage does not wait 2 (pp - 1) slots: {odd}")
    print(f"ok: {len(figures)} figures of the schedule, and the slots of lesson 5")


def check_refusals(page):
    said = {"tp=3": "attention heads (4) must be divisible by tp (3); sizes that work: 1, 2, 4",
            "pp=5": "layers (4) must be at least pp (5)", "ep=2": "ep (2) has no effect without experts",
            "model=moe&ep=3&dp=3": "ep (3) must divide the experts (8); sizes that work: 1",
            "model=moe&ep=4&dp=2": "ep (4) must divide the data-parallel size (2)",
            "model=moe&ep=4&dp=6&pp=1&etp1=1": "whole experts (etp 1 below tp 2) need sequence parallelism",
            "chunks=2&m=5": "micro-batches (5) must be divisible by pp (2)", "chunks=4": "layers (4) must be divisible by pp x chunks = 8"}
    for (address, expected), found in zip(said.items(), call(page, SHOWN, list(said))):
        if expected not in found["refused"]:
            fail(f"{address}: {found['refused']!r}, expected {expected!r}")
    cures = ["tp=4", "model=moe&ep=1&dp=3", "model=moe&ep=2&dp=2", "chunks=2&m=6", "chunks=4&layers=8&m=4", "model=moe&ep=4&dp=6&sp=1&etp1=1"]
    for address, found in zip(cures, call(page, SHOWN, cures)):
        if found["refused"]:
            fail(f"{address}: {found['refused']}")
    print(f"ok: {len(said)} refusals, and {len(cures)} meshes that they recommend")


def press(page, key):
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"ArrowRight": 39, "ArrowDown": 40}[key])


def mouse(page, *moves):
    for kind, x, y in moves:
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=int(kind != "mouseReleased"), clickCount=1)


def drag(page, slider, value):
    """Drags the thumb of a slider to a value."""
    page.evaluate(f"by('{slider}').scrollIntoView({{block: 'center'}})")
    left, y, width, first, least, most = page.evaluate(f"""(() => {{ const e = by('{slider}'), r = e.getBoundingClientRect();
      return [r.left, r.top + r.height / 2, r.width, Number(e.value), Number(e.min), Number(e.max)]; }})()""")
    x = lambda at: left + 8 + (at - least) / (most - least) * (width - 16)
    mouse(page, ("mousePressed", x(first), y), ("mouseMoved", (x(first) + x(value)) / 2, y), ("mouseMoved", x(value), y),
          ("mouseReleased", x(value), y))


def current(page):
    """The numbers that the page shows, as they are."""
    return call(page, SHOWN, [None])[0]


def check_moves(page, vectors):
    call(page, SHOWN, ["model=gpt&tp=1&pp=1&m=4&b=2"])
    page.evaluate("by('tp').focus()")
    press(page, "ArrowRight")
    if page.evaluate("document.activeElement.id + document.activeElement.matches(':focus-visible')") != "tptrue":
        fail("the slider has lost the focus, or does not show it")
    if current(page)["memory"] != vectors["gpt", "tp2-pp1-dp2-zero1-b2"]["memory"]:
        fail(f"ArrowRight on tp: {page.evaluate('addressOf()')}, {current(page)}")
    call(page, SHOWN, ["model=gpt&pp=1&m=8&b=2"])
    drag(page, "pp", 2)
    if current(page)["memory"] != vectors["gpt", "tp2-pp2-dp2-zero1-b2"]["memory"]:
        fail(f"pp dragged to 2: {page.evaluate('addressOf()')}, {current(page)}")
    call(page, SHOWN, [""])
    x, y = page.evaluate("""(() => { const cell = by('mesh').querySelector('[data-rank="1"]'); cell.scrollIntoView({block: 'center'});
      const r = cell.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()""")
    mouse(page, ("mousePressed", x, y), ("mouseReleased", x, y))
    press(page, "ArrowDown")
    if page.evaluate("document.activeElement.getAttribute('aria-label')") != "rank 5: pp 1, dp 0, tp 1":
        fail(f"a tap on rank 1 and ArrowDown: {page.evaluate('addressOf()')}")
    if page.evaluate("new Promise(done => setTimeout(() => done(location.hash), 300))") != "#rank=5":
        fail(f"the address is {page.evaluate('location.hash')}")
    kin = page.evaluate("[...by('mesh').querySelectorAll('.kin')].map(cell => cell.textContent)")
    if kin != ["10,0,1pp", "41,0,0tp", "71,1,1dp"]:
        fail(f"the groups of rank 5: {kin}")
    if not page.evaluate("by('summary').textContent").startswith("8 ranks. Rank 5 is pp 1, dp 0, tp 1."):
        fail("the summary does not follow")
    print("ok: a key, a drag and a tap move the page")


def planned(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        fail(f"{' '.join(map(str, command))}: {run.stderr}")
    return json.loads(run.stdout)


def check_plans(page, plan):
    for model, ranks, samples, every in PLANS:
        flags = page.evaluate(f"MODELS[{json.dumps(model)}][1]")
        meshes = planned([plan, *flags.split(), "--preset", "h100", "--gpus", str(ranks), "--global-batch-size", str(samples), "--top", "0",
                          "--json"])["meshes"]
        legal = call(page, LEGAL, [model, ranks, samples])
        if differ := set(legal) ^ {mesh["mesh"] for mesh in meshes}:
            fail(f"{model}: only one of the page and plan accepts {sorted(differ)[:5]}, {len(differ)} in all")
        some = meshes[::every]
        found = call(page, NUMBERS, [[flags, legal[mesh["mesh"]], [stage["first"] for stage in mesh["stages"]]] for mesh in some])
        for mesh, stages in zip(some, found):
            expected = [{"first": s["first"], "memory": [s["memory"][part] for part in PARTS],
                         "traffic": {f"{t['group']} {t['verb']}": [t["calls"], t["bytes"]] for t in s["traffic"]}} for s in mesh["stages"]]
            if stages != expected:
                fail(f"{model} on {mesh['mesh']}: {stages}, expected {expected}")
        print(f"ok: {model}: {len(legal)} meshes of {ranks} ranks are legal, as plan says; {len(some)} have its numbers")
    for address in ("rank=5", "model=70B&half=1&tp=8&pp=16&dp=64&zero=1&m=64&rank=8000", "model=7B&half=1&tp=4&sp=1&m=16", "model=moe&dp=4&ep=2&recompute=1"):
        shown = call(page, SHOWN, [address])[0]
        words = page.evaluate("by('command').textContent").split()
        mesh = planned([plan, *words[1:], "--json"])["meshes"][0]
        stage = page.evaluate("coordOf(meshOf(), state.rank).pp")
        memory = [[s["memory"][part] for part in PARTS] for s in mesh["stages"] if s["first"] <= stage < s["first"] + s["count"]]
        if memory != [shown["memory"]] or shown["wide"]:
            fail(f"{address}: the page shows {shown}, its command {memory}")


def check_look(browser, home, address):
    """The page follows the site's switch of light and dark, whatever the system says."""
    site = browser.open(home, 1280, 800)
    for look, expected in (("__palette_1", "rgb(18, 22, 28)"), ("__palette_0", "rgb(255, 255, 255)")):
        site.evaluate(f"document.querySelector('label[for={look}]').click()")
        page = browser.open(address, 1280, 800, dark=look == "__palette_0")
        found = page.evaluate("getComputedStyle(document.body).backgroundColor")
        if found != expected:
            fail(f"the site's {look} makes the page {found}, expected {expected}")
        page.close()
    print("ok: the page is as dark as the site")


def main(program, file, plan=None):
    address = pathlib.Path(file).resolve().as_uri()
    with Browser(program) as browser:
        page = browser.open(address, 360, 800)
        vectors = check_vectors(page)
        check_schedules(page)
        check_refusals(page)
        check_moves(page, vectors)
        if plan:
            check_plans(page, plan)
        folder = address.rsplit("/", 1)[0] + "/"
        problems = page.problems + [f"asks for {each}" for each in page.requests if not each.startswith(folder)]
        if problems:
            fail("; ".join(problems))
        check_look(browser, address.removesuffix("docs/mesh/index.html") + "index.html", address)
    print("ok: no complaint and no request")


main(*sys.argv[1:])
