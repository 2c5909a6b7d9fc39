/** The documents say what the code does. */
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { entryOf, figureIds } from "../bench/catalog.ts";
import { nameIn, optionsOf } from "../src/cli/command.ts";
import { commands as clientCommands } from "../src/cli/commands.ts";
import { exitCodes } from "../src/cli/failures.ts";
import { helpOf } from "../src/cli/help.ts";
import { configHelp } from "../src/config.ts";
import { openDatabase } from "../src/db/database.ts";
import { operatorCommands } from "../src/operator/commands.ts";
import { closeCodes, statusOf } from "../src/wire/errors.ts";
import { AttachClientMessage, AttachServerMessage, ExecClientMessage, ExecServerMessage } from "../src/wire/exec.ts";
import { WatchServerMessage } from "../src/wire/file-watch.ts";
import { PtyClientMessage, PtyServerMessage } from "../src/wire/pty-messages.ts";
import { bannedWordsIn } from "./banned-words.ts";
import { limitsPage } from "./limits-page.ts";
import { groupNames, usualGroups } from "./runner/groups.ts";
import { lacksNoun, sentencesIn } from "./source-text.ts";

const commands = { ...clientCommands, ...operatorCommands };
const root = resolve(import.meta.dirname, "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const documents = [".", "docs", "docs/guides", "docs/operations", "docs/adr", "docs/notes", "bench", "test"].flatMap(
  list,
);

function list(folder: string): string[] {
  return readdirSync(join(root, folder))
    .filter((name) => name.endsWith(".md") || name === "llms.txt")
    .map((name) => join(folder, name));
}

/** Defaults that depend on the machine are said in words, so the table is the same everywhere. */
test("docs/OPERATIONS.md shows the settings as serve --help does", async () => {
  assert.ok(
    read("docs/OPERATIONS.md").includes(`\`\`\`\n${configHelp()}\n\`\`\``),
    "paste the table of `capsule serve --help`",
  );
  assert.ok((await commands.serve?.appendix?.())?.includes(configHelp()));
});

test("docs/CLI.md has the help of every command, and every exit code", () => {
  const text = read("docs/CLI.md");
  for (const [name, command] of Object.entries(commands)) {
    const section = `### ${name}\n\n\`\`\`\n${helpOf(name, command)}\n\`\`\`\n`;
    assert.ok(text.includes(section), `paste what capsule ${name} --help prints`);
  }
  for (const code of Object.values(exitCodes)) assert.match(text, new RegExp(`^\\| ${code} \\|`, "m"));
});

test("docs/ERRORS.md has every error code with its status and a remedy, and every reason", () => {
  const page = read("docs/ERRORS.md");
  const rows = [...page.matchAll(/^\| (\d{3}) \| `([a-z_]+)` \| (.+) \| (.+) \|$/gm)];
  const said = Object.fromEntries(rows.map(([, status, code]) => [code!, Number(status)]));
  assert.deepEqual(said, statusOf);
  assert.equal(rows.length, Object.keys(statusOf).length);
  const reasons = [...page.matchAll(/^\| `[a-z_]+` \| `([a-z_]+)` \| /gm)].map(([, reason]) => reason);
  assert.deepEqual(reasons, ["command_not_found", "upgrade_required"]);
});

test("docs/WEBSOCKETS.md has every message of every WebSocket with its fields, and every close code", async () => {
  const page = read("docs/WEBSOCKETS.md");
  const codes = [...page.matchAll(/^\| (\d{4}) \| .+ \| .+ \|$/gm)].map(([, code]) => Number(code));
  assert.deepEqual(codes, Object.values(closeCodes).sort());
  const sockets = { "exec/stream": [ExecClientMessage, ExecServerMessage], pty: [PtyClientMessage, PtyServerMessage] };
  const others = {
    "processes/{selector}/stream": [AttachClientMessage, AttachServerMessage],
    "files/watch": [undefined, WatchServerMessage],
  };
  for (const [name, [client, server]] of Object.entries({ ...sockets, ...others })) {
    const section = page.split(/^## /m).find((each) => each.startsWith(`${name}\n`)) ?? "";
    assert.ok(section.includes(`/v1/capsules/{id}/${name.replace("{selector}", "{pid or tag}")}`), name);
    const rows = [...section.matchAll(/^\| (client|server) \| `([a-z_]+)` \| (.*) \|$/gm)];
    const wanted = [...messagesOf("client", client), ...messagesOf("server", server)];
    assert.deepEqual(
      rows.map(([, from, type]) => `${from} ${type}`).sort(),
      [...new Set(wanted.map(([who]) => who))].sort(),
    );
    for (const [who, field] of wanted.filter(([, each]) => each !== undefined)) {
      const [, , , text = ""] = rows.find(([, from, type]) => `${from} ${type}` === who)!;
      assert.ok(text.includes(`\`${field}\``) || text === "the same", `${name}: ${who} has ${field}`);
    }
  }
});

/** Sender and type of each message, with each field of it, or with undefined where it has none. */
function messagesOf(from: string, schema: object | undefined): [who: string, field: string | undefined][] {
  const { anyOf = [] } = (schema ?? {}) as { anyOf?: { properties: Record<string, { const?: string }> }[] };
  return anyOf.flatMap(({ properties: { type, ...fields } }) =>
    [undefined, ...Object.keys(fields)].map((field): [string, string | undefined] => [`${from} ${type!.const}`, field]),
  );
}

test("docs/LIMITS.md is as test/limits-page.ts writes it", async () => {
  assert.equal(read("docs/LIMITS.md"), await limitsPage(), "run: node test/limits-page.ts");
});

test("every link between documents leads somewhere", () => {
  for (const document of documents) {
    for (const [, target = "", anchor] of read(document).matchAll(/\]\(([^)#]*)#?([^)]*)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const page = target === "" ? document : join(dirname(document), target);
      assert.ok(existsSync(join(root, page)), `${document} links to ${target}`);
      if (anchor !== "" && page.endsWith(".md"))
        assert.ok(anchorsOf(read(page)).has(anchor!), `${document} links to ${target}#${anchor}`);
    }
  }
});

/** As GitHub makes them of headings. */
function anchorsOf(text: string): Set<string> {
  const heads = [...text.matchAll(/^#+ (.+)$/gm)].map(([, head]) => head!.toLowerCase());
  return new Set(heads.map((head) => head.replace(/[^\p{L}\p{N} _-]/gu, "").replaceAll(" ", "-")));
}

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
    for (const [, typed = ""] of read(document).matchAll(/\.\/capsule ([a-z]+(?: [a-z]+)*)/g)) {
      const words = typed.split(" ");
      const isGroup = Object.keys(commands).some((name) => name.startsWith(`${words.slice(0, 2).join(" ")} `));
      assert.ok(nameIn(commands, words) !== undefined || isGroup, `${document}: ./capsule ${typed}`);
    }
  }
});

test("docs/OPERATIONS.md has a row of every command of the operator", () => {
  const [, table = ""] = /^## Commands\n([^#]+)/m.exec(read("docs/OPERATIONS.md")) ?? [];
  const typed = [...table.matchAll(/`(?:\.\/capsule )?([^`]+)`/g)].map(([, words]) => `${words} `);
  const names = Object.keys(operatorCommands).map((name) => name.replace(/^admin /, ""));
  const missing = names.filter((name) => !typed.some((each) => each.replace(/^admin /, "").startsWith(`${name} `)));
  assert.deepEqual(missing, []);
});

test("test/README.md has a row of every group of tests, and says which `./dev test` runs", () => {
  const rows = [
    ...read("test/README.md").matchAll(/^\| ((?:`[a-z]+` ?)+) \| (yes|`all`) \| (?:–|[0-9.]+(?: each)?) \| /gm),
  ].flatMap(([, names = "", runs]) =>
    [...names.matchAll(/[a-z]+/g)].map(([name]) => ({ name, isUsual: runs === "yes" })),
  );
  const groups = groupNames.map((name) => ({ name, isUsual: usualGroups.includes(name) }));
  const byName = (a: { name: string }, b: { name: string }) => a.name.localeCompare(b.name);
  assert.deepEqual(rows.sort(byName), groups.sort(byName));
});

test("test/README.md has a row of every variable that the tests and the build of the image read", () => {
  const page = read("test/README.md");
  const readers = ["test", "src", "guest/image", "guest/agent/tests"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
      .map((name) => join(folder, name))
      .filter((path) => (path.startsWith("src/") ? path.endsWith(".test.ts") : /\.(ts|rs)$/.test(path))),
  );
  const names = new Set<string>();
  for (const path of readers) {
    const text = read(path);
    for (const [, name] of text.matchAll(/\b(?:process\.env\.|env\.|env::var\(")(CAPSULE_[A-Z_]+)/g)) names.add(name!);
    for (const [, list = ""] of text.matchAll(/\{([^{}]*)\} = process\.env\b/g)) {
      for (const [name] of list.matchAll(/CAPSULE_[A-Z_]+/g)) names.add(name);
    }
  }
  assert.ok(names.size > 12, [...names].join(" "));
  const rows = page.split("\n").filter((line) => line.startsWith("| `CAPSULE_"));
  const named = new Set(
    rows.flatMap((row) => [...row.split(" | ")[0]!.matchAll(/`([A-Z_]+)[=`]/g)].map(([, name]) => name)),
  );
  assert.deepEqual(
    [...names].filter((name) => !named.has(name)),
    [],
  );
});

test("no document has a word that the house does not use, outside of code", () => {
  const wrong: string[] = [];
  for (const document of documents) {
    const prose = read(document).replace(/^```.*?^```$|`[^`\n]*`|\]\([^)]*\)/gms, " ");
    const words = new Set(prose.match(/[A-Za-z]+/g));
    for (const word of [...bannedWordsIn(words), ...["whoever", "somebody"].filter((each) => words.has(each))]) {
      wrong.push(`${document}: ${word}`);
    }
  }
  assert.deepEqual(wrong, []);
});

test("a document's sentence has a noun as its subject", () => {
  const wrong = documents.flatMap((path) => {
    const found = sentencesIn(read(path)).filter((sentence) => lacksNoun.test(sentence));
    return found.map((sentence) => `${path}: ${sentence}`);
  });
  assert.deepEqual(wrong, []);
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

test("each decision has a number of its own, a short title, a status, a date and a row in the index", () => {
  const paths = list("docs/adr").filter((path) => !path.endsWith("README.md"));
  const index = read("docs/adr/README.md");
  let last = 0; // numbers are given out before their pages are written, so one may be missing
  for (const path of paths.sort()) {
    const number = Number(/^(\d{4})-/.exec(basename(path))?.[1]);
    const text = read(path);
    assert.ok(number > last, path);
    last = number;
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

test("the figures and targets in bench/RESULTS.md are those of the benchmarks", () => {
  const table = /^\| figure \|.*\n\|.*\n((?:\|.*\n)*)/m.exec(read("bench/RESULTS.md"))?.[1] ?? "";
  const rows = table
    .split("\n")
    .filter(Boolean)
    .map((line) => line.replace(/^\| | \|$/g, "").split(" | "));
  const found = new Map<string, Set<string>>();
  let figure = "";
  for (const [name, , , , , , target] of rows) {
    figure = name!.trim() || figure;
    found.set(figure, (found.get(figure) ?? new Set()).add(target!));
  }
  const wanted = figureIds.map(entryOf).filter(({ isLong }) => isLong === undefined);
  assert.deepEqual([...found.keys()].sort(), wanted.map(({ name }) => name).sort());
  for (const { name, targets } of wanted) {
    const said = Object.values(targets).map((target) => target.said);
    assert.deepEqual([...found.get(name)!], said.length === 0 ? ["–"] : said, name);
  }
});

test("docs/PERFORMANCE.md names figures of the benchmarks only", () => {
  const names = new Set(figureIds.map((id) => entryOf(id).name));
  const rows = [...read("docs/PERFORMANCE.md").matchAll(/^\| .* \| `([^`]+)` \|$/gm)];
  assert.ok(rows.length >= 10, "the table of figures has lost its last column");
  for (const [, name] of rows) assert.ok(names.has(name!), `no benchmark measures "${name}"`);
});

test("CHANGELOG.md names settings, commands and options that exist, and has its heads in order", () => {
  const text = read("CHANGELOG.md");
  const gone = ["CAPSULE_BLANKS", "CAPSULE_BLANKS_MEMORY_MB", "CAPSULE_POOL_LEAST"];
  const here = new Set(configHelp().match(/^CAPSULE_[A-Z_]+/gm)!);
  for (const name of gone) assert.ok(!here.has(name), name);
  const settings = new Set([...here, ...gone]);
  const mentioned = text.match(/\bCAPSULE_[A-Z_]+/g) ?? [];
  assert.ok(mentioned.length > 15);
  for (const name of mentioned) assert.ok(settings.has(name), name);
  const options = new Set(Object.values(commands).flatMap((command) => Object.keys(optionsOf(command))));
  for (const name of read("dev").match(/--[a-z][a-z-]*/g)!) options.add(name.slice(2));
  for (const [, option] of text.matchAll(/(?<![\w-])--([a-z][a-z-]*)/g)) assert.ok(options.has(option!), `--${option}`);
  const firstWords = [...Object.keys(commands), "backup"].map((name) => name.split(" ")[0]);
  for (const [, word] of text.matchAll(/`capsule ([a-z]+)/g)) assert.ok(firstWords.includes(word!), `capsule ${word}`);
  const schema = openDatabase(":memory:").prepare("PRAGMA user_version").get()?.user_version;
  for (const [, said] of text.matchAll(/schema (\d+)/g)) assert.equal(Number(said), schema);
  const [, ...releases] = text.split(/^## /m);
  assert.ok(releases.length > 0);
  const { version } = JSON.parse(read("package.json")) as { version: string };
  assert.match(releases[0]!, new RegExp(`^${version.replaceAll(".", "[.]")}, 20\\d\\d-\\d\\d-\\d\\d\n`));
  for (const release of releases) {
    assert.deepEqual(release.match(/^### .*$/gm), ["### Breaking", "### Added", "### Changed", "### Fixed"]);
    const [, first, ...lines] = release.split("\n").filter(Boolean);
    assert.match(first!, /^\*\*Before you upgrade\*\*/);
    for (const line of lines) assert.match(line, /^(- |#{3,4} )/, "a change is one line, under one of the four heads");
  }
});
