import assert from "node:assert/strict";
import { test } from "node:test";
import { bannedWordsIn } from "./banned-words.ts";
import { functionsIn, identifiersIn } from "./source-text.ts";

test("identifiers are those of code, and of code in templates", () => {
  const text = `const first = "quoted"; // said
/* told */ use(\`text \${second.third}\`, 'single');
`;
  assert.deepEqual([...identifiersIn(text)].sort(), ["const", "first", "second", "third", "use"]);
});

test("functions are found with their length, whatever their head looks like", () => {
  const text = `export async function plain(a: string): Promise<void> {
  if (a) {
    b();
  }
}
class A {
  #method(
    a: string,
  ): { b: string } {
    return run(() => {
      c();
    });
  }
  get view() {
    return 1;
  }
}
const jsx = ({ a }: Props) => (
  <b onClick={() => a}>
  </b>
);
`;
  const found = functionsIn(text).map(({ line, lines }) => [line, lines]);
  assert.deepEqual(found, [
    [1, 5],
    [7, 7],
    [10, 3],
    [14, 3],
    [18, 4],
  ]);
});

test("a banned word is found in any part of an identifier, and not within another word", () => {
  const words = ["warmBlanks", "CAPSULE_BLANKS", "key-shelf", "dispatch", "blank_line", "Rehearsals", "xStock"];
  assert.deepEqual(
    bannedWordsIn(words),
    words.filter((word) => word !== "dispatch"),
  );
});
