import assert from "node:assert/strict";
import { test } from "node:test";
import { bannedWordsIn } from "./banned-words.ts";
import { commentsIn, functionsIn, identifiersIn, lacksNoun, pollersIn, sentencesIn } from "./source-text.ts";

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

test("a loop that waits for a turn or for time is found, unless it counts, goes through a list or looks at a clock", () => {
  const text = `
| while (!isDone()) await new Promise(setImmediate);
| for (let again = 1; again > 0; again = left()) {
|   await delay(5);
| }
| while (!(await isDone())) {
|   await new Promise((resolve) => setTimeout(resolve, 20));
| }
| do {
|   await setImmediate();
| } while (!isDone());
| for (;;)
|   await sleep(1);
| while (!isDone()) {
|   await new Promise((resolve) => {
|     wake = resolve;
|   });
| }
| for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
| for (let left = 10; left > 0 && !isDone(); left--) {
|   await delay(5);
| }
| for (const each of all) await delay(each);
| for (const began = performance.now(); performance.now() - began < 10; ) await delay(5);
`;
  assert.deepEqual(pollersIn(text.replaceAll("| ", "")), [2, 3, 6, 9, 12]);
});

test("a banned word is found in any part of an identifier, and not within another word", () => {
  const words = ["warmBlanks", "CAPSULE_BLANKS", "key-shelf", "dispatch", "blank_line", "Rehearsals", "xStock"];
  assert.deepEqual(
    bannedWordsIn(words),
    words.filter((word) => word !== "dispatch"),
  );
});

test("comments are found whole, and cut into sentences", () => {
  const text = `/** First. And
 * second: \`code\`. */
const a = "/* a string */"; // beside code
// One
// two.
`;
  assert.deepEqual(commentsIn(text), [
    { line: 1, sentences: ["First.", "And second: `code`."] },
    { line: 3, sentences: ["beside code"] },
    { line: 4, sentences: ["One two."] },
  ]);
});

test("sentences of a document are those of paragraphs, list items and cells", () => {
  const text = `# What it is

First. Second goes
on.

- **What it does.** What is left
  stays.
- Item

| what | Cell. Those |
\`\`\`sh
# What is code
\`\`\`
`;
  const sentences = ["First.", "Second goes on.", "**What it does.**", "What is left stays.", "Item", "Cell.", "Those"];
  const found = sentencesIn(text);
  for (const sentence of sentences) assert.ok(found.includes(sentence), sentence);
  assert.ok(!found.some((sentence) => /code|it is/.test(sentence)));
  assert.deepEqual(
    found.filter((each) => lacksNoun.test(each)),
    ["What is left stays.", "Those"],
  );
});
