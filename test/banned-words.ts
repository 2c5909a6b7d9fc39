/**
 * Words that the house does not use: coined terms for which the field has a standard one (docs/CONCEPTS.md has them).
 */

const stems = [
  "blank",
  "stock",
  "shelf",
  "shelv",
  "staple",
  "newcomer",
  "hatch",
  "rehears",
  "rouse",
  "calm",
  "crowd",
  "departure",
  "stranger",
  "parting",
  "relent",
  "condemn",
  "crumb",
  "farewell",
  "bury",
  "buried",
  "unwanted",
  "founding",
  "waker",
  "yardstick",
  "chore",
  "zoo",
  "teller",
  "story",
  "stories",
  "liar",
  "ledger",
  "keeper",
  "unruly",
  "floors",
  "carrier",
  "patience",
  "relief",
  "reliev",
];
const banned = new RegExp(`^(${stems.join("|")})`);

/** The banned words among these, which are whole words or identifiers in camelCase, snake_case or kebab-case. */
export function bannedWordsIn(words: Iterable<string>): string[] {
  const found = new Set<string>();
  for (const word of words) {
    for (const part of word.match(/[A-Z]?[a-z]+|[A-Z]+(?![a-z])/g) ?? []) {
      if (banned.test(part.toLowerCase())) found.add(word);
    }
  }
  return [...found];
}
