/** The house rules for the guest agent's Rust sources. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";

const source = resolve(import.meta.dirname, "../guest/agent/src");
const maxLines = 330;

const files = readdirSync(source, { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".rs"))
  .sort();
const textOf = (file: string) => readFileSync(join(source, file), "utf8");

/** `files/paths.rs` is the module `files::paths`. */
const moduleOf = (file: string) => file.replace(/\.rs$/, "").replaceAll("/", "::");
const modules = new Map(files.map((file) => [moduleOf(file), file]));

/** The files of this crate that a file names in a `use`; type imports count, those of its tests do not. */
function importsOf(file: string): string[] {
  const text = textOf(file).split("#[cfg(test)]")[0]!;
  const paths = [...text.matchAll(/\bcrate::([a-z_]+(?:::[a-z_]+)*)/g)].map(([, path]) => path!.split("::"));
  return paths.flatMap((parts) => {
    // The longest prefix that is a file: the rest names something in it.
    for (let length = parts.length; length > 0; length--) {
      const found = modules.get(parts.slice(0, length).join("::"));
      if (found !== undefined) return found === file ? [] : [found];
    }
    return [];
  });
}

test("a Rust file says at its top why it exists, and is at most 330 lines long", () => {
  for (const file of files) {
    const text = textOf(file);
    assert.match(text, /^\/\/! /, `${file} has no header comment`);
    const lines = text.split("\n").length - 1;
    assert.ok(lines <= maxLines, `${file} has ${lines} lines; split it by noun`);
  }
});

test("only agent.rs implements Agent, and its fields are private", () => {
  const implementors = files.filter((file) => /^impl(?:<.*>)?\s+(?:\w+\s+for\s+)?Agent\b/m.test(textOf(file)));
  assert.deepEqual(implementors, ["agent.rs"]);
  const fields = textOf("agent.rs").match(/pub struct Agent \{(.*?)^\}/ms)?.[1];
  assert.ok(fields, "agent.rs defines Agent");
  assert.doesNotMatch(fields, /^\s*pub\b/m);
});

test("no circle among Rust files", () => {
  const done = new Set<string>();
  const visit = (file: string, path: string[]): void => {
    assert.ok(!path.includes(file), `circle: ${[...path, file].join(" → ")}`);
    if (done.has(file)) return;
    for (const next of importsOf(file)) visit(next, [...path, file]);
    done.add(file);
  };
  assert.ok(importsOf("agent.rs").includes("dispatcher.rs"), "imports are found");
  for (const file of files) visit(file, []);
});
