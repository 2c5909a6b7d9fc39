/** The house rules that a program can check: who imports whom, how files are named, how long they are. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";

const root = resolve(import.meta.dirname, "..");
const source = join(root, "src");

/** Room → the rooms it may import from, besides itself and `wire`. A single file at the top is a room of its own. */
const arrows: Record<string, string[]> = {
  "main.ts": ["operator", "cli"],
  telemetry: ["host", "http", "vmm"],
  operator: ["daemon.ts", "config.ts", "version.ts", "teams", "db", "host", "vmm", "agent"],
  "daemon.ts": [
    "config.ts",
    "maintenance.ts",
    "version.ts",
    "telemetry",
    "http",
    "templates",
    "capsules",
    "teams",
    "db",
    "host",
    "vmm",
    "agent",
  ],
  "maintenance.ts": ["capsules", "teams"],
  "config.ts": ["setting.ts"],
  "setting.ts": [],
  "version.ts": [],
  wire: [],
  sdk: [],
  cli: ["sdk"],
  http: ["templates", "capsules", "teams", "agent"],
  templates: ["capsules", "host", "db"],
  capsules: ["host", "db", "agent"],
  teams: ["db"],
  host: ["vmm", "agent"],
  vmm: [],
  agent: [],
  db: [],
};

/** Arrows that carry types or pure names only; a value import along them is a back door. */
const typesOnly = [
  ["capsules", "agent"],
  ["http", "templates"],
  ["http", "capsules"],
  ["http", "teams"],
  ["telemetry", "host"],
  ["telemetry", "http"],
  ["telemetry", "vmm"],
];

/** Imported packages and Node modules that belong to one room. */
const keptTo: Record<string, string[]> = {
  "node:sqlite": ["db", "host"],
  "node:child_process": ["vmm", "host", "operator"],
  fastify: ["http"],
  ws: ["http", "cli"],
};

const forbiddenWords = /(manager|helper|util|utils|common|misc)/;
const maxLines = 330;

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
  return path.split("/")[0]!;
}

const imports = production.flatMap(importsOf);
const at = (each: Import) => `src/${each.file}:${each.line}`;

test("imports follow the arrows of docs/ARCHITECTURE.md", () => {
  const wrong: string[] = [];
  for (const each of imports.filter(({ target }) => target.startsWith("."))) {
    const target = relative(source, join(source, dirname(each.file), each.target));
    const from = roomOf(each.file);
    const to = roomOf(target);
    if (from === to || (to === "wire" && from !== "wire")) continue;
    if (!arrows[from]?.includes(to)) wrong.push(`${at(each)} ${from} may not import ${target}`);
    const isBackDoor = typesOnly.some(([a, b]) => a === from && b === to) && !each.isType;
    if (isBackDoor) wrong.push(`${at(each)} ${from} may import only types from ${target}`);
  }
  assert.deepEqual(wrong, []);
});

test("no circle among files", () => {
  const graph = new Map<string, string[]>();
  for (const each of imports.filter(({ target, isType }) => target.startsWith(".") && !isType)) {
    const target = relative(source, join(source, dirname(each.file), each.target));
    graph.set(each.file, [...(graph.get(each.file) ?? []), target]);
  }
  const done = new Set<string>();
  const visit = (file: string, path: string[]): void => {
    assert.ok(!path.includes(file), `circle: ${[...path, file].join(" → ")}`);
    if (done.has(file)) return;
    for (const next of graph.get(file) ?? []) visit(next, [...path, file]);
    done.add(file);
  };
  for (const file of production) visit(file, []);
});

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

test("sandbox_id stands in one file", () => {
  const holders = production.filter((file) => readFileSync(join(source, file), "utf8").includes("sandbox_id"));
  assert.equal(holders.length, 1, holders.join(", "));
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
