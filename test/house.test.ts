/** The house rules that a program can check: who imports whom, how files are named, how long they are. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";
import { bannedWordsIn } from "./banned-words.ts";
import { commentsIn, functionsIn, identifiersIn, lacksNoun, pollersIn } from "./source-text.ts";

const root = resolve(import.meta.dirname, "..");
const source = join(root, "src");

/** Room → the rooms it may import from besides itself and `wire`, and of which it may import types only. */
interface Arrows {
  to: Set<string>;
  typesOnly: Set<string>;
}

/** The table of rooms on docs/ARCHITECTURE.md. A file at the top of `src` is a room of its own, without its suffix. */
function arrowsOf(page: string): Map<string, Arrows> {
  const arrows = new Map<string, Arrows>();
  for (const line of page.split("\n").filter((each) => each.startsWith("| `src/"))) {
    const [, path, cell] = /^\| `src\/([a-z]+)(?:\/|\.ts)` \| .* \| (.*) \|$/.exec(line) ?? [];
    assert.ok(path !== undefined && cell !== undefined, `docs/ARCHITECTURE.md: no row of a room: ${line}`);
    const row: Arrows = { to: new Set(), typesOnly: new Set() };
    for (const item of cell === "–" ? [] : cell.split(", ")) {
      const [, to, types] = /^`([a-z]+)`( \(types\))?$/.exec(item) ?? [];
      assert.ok(to !== undefined, `docs/ARCHITECTURE.md: "${item}" is no room that ${path} may import`);
      row.to.add(to);
      if (types !== undefined) row.typesOnly.add(to);
    }
    arrows.set(path, row);
  }
  return arrows;
}

const arrows = arrowsOf(readFileSync(join(root, "docs/ARCHITECTURE.md"), "utf8"));

/** Imported packages and Node modules that belong to one room. */
const keptTo: Record<string, string[]> = {
  "node:sqlite": ["db", "host"],
  "node:child_process": ["vmm", "host", "relay", "operator", "cli"],
  fastify: ["http"],
  ws: ["http", "cli"],
  pg: ["cluster"],
  s3mini: ["bucket"],
};

const forbiddenWords = /(manager|helper|util|utils|common|misc)/;
const maxLines = 330;
const maxFunctionLines = 70;

interface Import {
  file: string;
  line: number;
  target: string;
  isType: boolean;
}

const files = readdirSync(source, { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".ts"))
  .sort();
const production = files.filter((name) => !name.endsWith(".test.ts"));

function importsOf(file: string): Import[] {
  const text = readFileSync(join(source, file), "utf8");
  const found: Import[] = [];
  const pattern = /^(?:import|export)\s+(type\s)?[^;"']*?from\s+"([^"]+)"|import\("([^"]+)"\)|^import\s+"([^"]+)"/gm;
  for (const match of text.matchAll(pattern)) {
    const line = text.slice(0, match.index).split("\n").length;
    found.push({ file, line, target: (match[2] ?? match[3] ?? match[4])!, isType: match[1] !== undefined });
  }
  return found;
}

function roomOf(path: string): string {
  return path.split("/")[0]!.replace(/\.ts$/, "");
}

function targetOf({ file, target }: Import): string {
  return relative(source, join(source, dirname(file), target));
}

const imports = production.flatMap(importsOf);
const at = (each: Import) => `src/${each.file}:${each.line}`;

test("imports follow the arrows of docs/ARCHITECTURE.md", () => {
  const wrong: string[] = [];
  for (const each of imports.filter(({ target }) => target.startsWith("."))) {
    const target = targetOf(each);
    const from = roomOf(each.file);
    const to = roomOf(target);
    if (from === to || (to === "wire" && from !== "wire")) continue;
    const row = arrows.get(from);
    if (row === undefined) wrong.push(`${at(each)} ${from} has no row in docs/ARCHITECTURE.md`);
    else if (!row.to.has(to)) wrong.push(`${at(each)} ${from} may not import ${target}`);
    else if (row.typesOnly.has(to) && !each.isType)
      wrong.push(`${at(each)} ${from} may import only types of ${target}`);
  }
  assert.deepEqual(wrong, []);
});

test("the arrows of docs/ARCHITECTURE.md lead from room to room, and never back", () => {
  for (const [from, { to }] of arrows) for (const room of to) assert.ok(arrows.has(room), `${from} → ${room}: no room`);
  assertNoCircle(new Map([...arrows].map(([from, { to }]) => [from, [...to]])));
});

test("no circle among the folders of a room", () => {
  const graph = new Map<string, string[]>();
  for (const each of imports.filter(({ target }) => target.startsWith("."))) {
    const [from, to] = [dirname(each.file), dirname(targetOf(each))];
    const isInside = from.split("/").length === 2 && to.split("/").length === 2 && roomOf(from) === roomOf(to);
    if (isInside && from !== to) graph.set(from, [...(graph.get(from) ?? []), to]);
  }
  assertNoCircle(graph);
});

test("no circle among files, type imports included", () => {
  const graph = new Map<string, string[]>();
  for (const each of imports.filter(({ target }) => target.startsWith("."))) {
    const target = targetOf(each);
    graph.set(each.file, [...(graph.get(each.file) ?? []), target]);
  }
  assertNoCircle(graph);
});

function assertNoCircle(graph: ReadonlyMap<string, readonly string[]>): void {
  const done = new Set<string>([]);
  const visit = (node: string, path: string[]): void => {
    assert.ok(!path.includes(node), `circle: ${[...path, node].join(" → ")}`);
    if (done.has(node)) return;
    for (const next of graph.get(node) ?? []) visit(next, [...path, node]);
    done.add(node);
  };
  for (const node of graph.keys()) visit(node, []);
}

test("some modules are kept to the rooms they belong to", () => {
  const wrong = imports.filter(({ file, target }) => keptTo[target] && !keptTo[target].includes(roomOf(file)));
  assert.deepEqual(
    wrong.map((each) => `${at(each)} imports ${each.target}`),
    [],
  );
});

test("files are kebab-case nouns, and none is a barrel or a drawer", () => {
  for (const file of files) {
    const name = file.split("/").at(-1)!;
    assert.match(name, /^[a-z0-9]+(-[a-z0-9]+)*(\.test)?\.ts$/, file);
    assert.notEqual(name, "index.ts", file);
    assert.doesNotMatch(name, forbiddenWords, file);
  }
});

test("a file says at its top why it exists, and stays within sight", () => {
  for (const file of production) {
    const text = readFileSync(join(source, file), "utf8");
    assert.match(text, /^(#!.*\n)?\/\*\*/, `src/${file} has no header comment`);
    const lines = text.split("\n").length;
    assert.ok(lines <= maxLines, `src/${file} has ${lines} lines; split it by noun`);
  }
});

const dashboard = join(root, "web");
const dashboardFiles = readdirSync(dashboard, { recursive: true, encoding: "utf8" })
  .filter((name) => /\.tsx?$/.test(name))
  .sort();

test("the dashboard meets the server in src/wire and src/sdk only, keeps its own arrows, and has good files", () => {
  const ownArrows: Record<string, string[]> = {
    pages: ["pages", "parts", "state"],
    parts: ["parts", "state"],
    state: ["state"],
  };
  for (const file of dashboardFiles) {
    const text = readFileSync(join(dashboard, file), "utf8");
    assert.match(file, /^([a-z0-9-]+\/)?[a-z0-9]+(-[a-z0-9]+)*(\.test)?\.tsx?$/, file);
    assert.doesNotMatch(file, forbiddenWords, file);
    assert.ok(text.split("\n").length <= maxLines, `web/${file} is too long; split it by noun`);
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet/, `web/${file}`);
    if (file.endsWith(".test.ts")) continue;
    assert.match(text, /^\/\*\*/, `web/${file} has no header comment`);
    for (const [, target] of text.matchAll(/(?:from\s+|import\()"(\.[^"]+)"/g)) {
      const path = relative(root, resolve(dashboard, dirname(file), target!));
      if (/^src\/(wire|sdk)\//.test(path)) continue;
      const [, to = "", rest] = path.split("/");
      const allowed = ownArrows[file.split("/")[0]!];
      assert.ok(path.startsWith("web/"), `web/${file} may not import ${path}`);
      assert.ok(allowed === undefined || (rest !== undefined && allowed.includes(to)), `web/${file} imports ${path}`);
    }
  }
});

/** Every source file of the repository, by its path from the root. */
const everyFile = ["src", "web", "test", "bench", "sdk", "examples", "guest"].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .map((name) => join(folder, name))
    .filter((path) => /\.(tsx?|rs)$/.test(path) && !path.includes("/target/")),
);

test("a function stays within sight", () => {
  const long: string[] = [];
  for (const path of everyFile.filter((each) => /^(src|web)\/.*(?<!\.test)\.tsx?$/.test(each))) {
    for (const { line, lines, head } of functionsIn(readFileSync(join(root, path), "utf8"))) {
      if (lines > maxFunctionLines) long.push(`${path}:${line} ${head} has ${lines} lines`);
    }
  }
  assert.deepEqual(long, []);
});

test("a test waits with a deadline", () => {
  const tests = everyFile.filter((path) => /\.test\.ts$|^test\/.*\.ts$/.test(path) && path !== "test/wait-for.ts");
  const wrong = tests.flatMap((path) => pollersIn(readFileSync(join(root, path), "utf8")).map((at) => `${path}:${at}`));
  assert.deepEqual(wrong, [], "test/wait-for.ts polls with one");
});

test("no identifier and no file has a word that the house does not use", () => {
  const wrong: string[] = [];
  for (const path of everyFile) {
    const words = [basename(path), ...identifiersIn(readFileSync(join(root, path), "utf8"))];
    for (const word of bannedWordsIn(words)) wrong.push(`${path}: ${word}`);
  }
  assert.deepEqual(wrong, []);
});

test("no comment has a word that the house does not use, or a person in the machine", () => {
  const persons = /\b(?:whoever|somebody|greets?|remembers?|rests)\b/g;
  const wrong: string[] = [];
  for (const path of everyFile) {
    for (const { line, sentences } of commentsIn(readFileSync(join(root, path), "utf8"))) {
      const prose = sentences.join(" ").replace(/`[^`]*`/g, "");
      const found = [...bannedWordsIn(prose.match(/[A-Za-z]+/g) ?? []), ...(prose.match(persons) ?? [])];
      for (const word of found) wrong.push(`${path}:${line} ${word}`);
    }
  }
  assert.deepEqual(wrong, []);
});

test("a comment's sentence has a noun as its subject", () => {
  const wrong: string[] = [];
  for (const path of everyFile) {
    for (const { line, sentences } of commentsIn(readFileSync(join(root, path), "utf8"))) {
      for (const sentence of sentences.filter((each) => lacksNoun.test(each)))
        wrong.push(`${path}:${line} ${sentence}`);
    }
  }
  assert.deepEqual(wrong, []);
});
