/** The documents say what the code does. */
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { entryOf, figureIds } from "../bench/catalog.ts";
import { withFindings } from "../bench/performance-page.ts";
import { commands } from "../src/cli/commands.ts";
import { exitCodes } from "../src/cli/failures.ts";
import { helpOf, overview } from "../src/cli/help.ts";
import { configHelp } from "../src/config.ts";
import { help } from "../src/operator/commands.ts";

const root = resolve(import.meta.dirname, "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const documents = ["README.md", "CONTRIBUTING.md", ...list("docs"), ...list("docs/guides"), ...list("docs/adr")];

function list(folder: string): string[] {
  return readdirSync(join(root, folder))
    .filter((name) => name.endsWith(".md"))
    .map((name) => join(folder, name));
}

/** Defaults that depend on the machine are said in words, so the table is the same everywhere. */
test("docs/OPERATIONS.md shows the settings as serve --help does", () => {
  assert.ok(
    read("docs/OPERATIONS.md").includes(`\`\`\`\n${configHelp()}\n\`\`\``),
    "paste the table of `capsule serve --help`",
  );
  assert.ok(help().includes(configHelp()));
});

test("docs/CLI.md has the help of every command, and every exit code", () => {
  const text = read("docs/CLI.md");
  for (const [name, command] of Object.entries(commands)) {
    const section = `### ${name}\n\n\`\`\`\n${helpOf(name, command)}\n\`\`\`\n`;
    assert.ok(text.includes(section), `paste what capsule ${name} --help prints`);
  }
  for (const code of Object.values(exitCodes)) assert.match(text, new RegExp(`^\\| ${code} \\|`, "m"));
});

test("every link between documents leads somewhere", () => {
  for (const document of documents) {
    for (const [, target] of read(document).matchAll(/\]\(([^)#]+)[^)]*\)/g)) {
      if (target === undefined || /^[a-z]+:/.test(target)) continue;
      assert.ok(existsSync(join(root, dirname(document), target)), `${document} links to ${target}`);
    }
  }
});

test("the rooms that docs/ARCHITECTURE.md lists are there, and all rooms are listed", () => {
  const text = read("docs/ARCHITECTURE.md");
  for (const [, path] of text.matchAll(/`((?:src|guest)\/[a-z./-]+)`/g)) assert.ok(existsSync(join(root, path!)), path);
  for (const entry of readdirSync(join(root, "src"), { withFileTypes: true })) {
    if (entry.isDirectory()) assert.ok(text.includes(`\`src/${entry.name}/\``), `src/${entry.name}/ is not described`);
  }
});

test("the commands that the documents tell people to type exist", () => {
  const script = read("dev");
  for (const document of documents) {
    for (const [, name] of read(document).matchAll(/\.\/dev ([a-z]+)/g)) {
      assert.match(script, new RegExp(`^ +${name}\\)`, "m"), `${document}: ./dev ${name}`);
    }
    for (const [, name] of read(document).matchAll(/\.\/capsule ([a-z]+)/g)) {
      assert.match(`${help()}\n${overview()}`, new RegExp(`capsule ${name}\\b`), `${document}: ./capsule ${name}`);
    }
  }
});

test("every wall that docs/SECURITY.md lists names a test that is there", () => {
  const [, ...sections] = read("docs/SECURITY.md").split(/^## /m);
  const walls = sections.flatMap((section) => {
    const [head, , ...rows] = section.split("\n").filter((line) => line.startsWith("|"));
    return /\| test \|$/.test(head ?? "") ? rows : [];
  });
  assert.ok(walls.length > 10, "the tables have lost their column of tests");
  for (const wall of walls) {
    const tests = [
      ...wall
        .split("|")
        .at(-2)!
        .matchAll(/`([^`]+)`/g),
    ].map(([, path]) => path!);
    assert.ok(tests.length > 0, `without a test: ${wall}`);
    for (const path of tests) assert.ok(existsSync(join(root, path)), `${path}: ${wall}`);
  }
});

test("decisions are numbered without gaps, have a short title, a status and a date, and are all in the index", () => {
  const paths = list("docs/adr").filter((path) => !path.endsWith("README.md"));
  const index = read("docs/adr/README.md");
  for (const [position, path] of paths.sort().entries()) {
    const number = position + 1;
    const text = read(path);
    assert.equal(basename(path).slice(0, 5), `${String(number).padStart(4, "0")}-`, path);
    const [, title, status, date] =
      new RegExp(
        `^# ${number}\\. (.+)\n\nStatus: (accepted|superseded by ADR \\d+)\nDate: (20\\d\\d-\\d\\d-\\d\\d)\n`,
      ).exec(text) ?? [];
    assert.ok(title !== undefined, `${path} begins with its title, "Status:" and "Date:"`);
    assert.ok(title.length <= 70, `${path}: a title of ${title.length} characters`);
    assert.ok(text.split("\n").length <= 61, `${path} is longer than a page`);
    assert.ok(
      index.includes(`| ${number} | [${title}](${basename(path)}) | ${status} | ${date} |\n`),
      `${path}: index`,
    );
  }
  assert.equal(index.match(/^\| \d+ \|/gm)?.length, paths.length);
});

test("a decision that the code names is there", () => {
  for (const folder of ["src", "web", "bench", "test", "guest/agent/src", "guest/image"]) {
    for (const name of readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })) {
      if (!/\.(tsx?|rs)$/.test(name) || name.includes("target/")) continue;
      for (const [, number, rest] of read(join(folder, name)).matchAll(/docs\/adr\/(\d{4})(-[a-z0-9-]+\.md)?/g)) {
        const found = list("docs/adr").filter((path) => basename(path).startsWith(`${number}${rest ?? "-"}`));
        assert.equal(found.length, 1, `${folder}/${name} names docs/adr/${number}${rest ?? ""}`);
      }
    }
  }
});

test("the figures and targets in docs/PERFORMANCE.md are those of the benchmarks", () => {
  const page = read("docs/PERFORMANCE.md");
  withFindings(page, { rows: [], traces: [], timestamp: "", accelerator: "" }); // throws without a place for them
  const table = /^\| figure \|.*\n\|.*\n((?:\|.*\n)*)/m.exec(page)?.[1] ?? "";
  const lines = table.split("\n").filter(Boolean);
  const cells = lines.map((line) => line.split(" | ").map((cell) => cell.replace(/^\||\|$/g, "").trim()));
  const entries = figureIds.map(entryOf);
  const targets = new Set(entries.flatMap((entry) => Object.values(entry.targets).map(({ said }) => said)));
  for (const [name, , , , , , target] of cells) {
    assert.ok(name === "" || entries.some((entry) => entry.name === name), `no benchmark measures "${name}"`);
    assert.ok(target === "–" || targets.has(target!), `no benchmark has the target "${target}"`);
  }
});
