/** The answer of ListObjectsV2: the names in it, found in one pass over the text. Everything else of the XML is left out. */
import { DamagedObject, type Listed } from "./objects.ts";

const entities: Readonly<Record<string, string>> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

/** Throws a DamagedObject where the text is no list, or has more than `most` names. */
export function namesOf(text: string, most: number): Listed {
  const refuse = (why: string) => new DamagedObject("a list", why);
  if (!/^\s*(<\?xml[^>]{0,200}\?>\s*)?<ListBucketResult[\s>]/.test(text.slice(0, 2_000))) throw refuse("it is no list");
  const names: string[] = [];
  for (let at = text.indexOf("<Key>"); at !== -1; at = text.indexOf("<Key>", at)) {
    const begin = at + "<Key>".length;
    const end = text.indexOf("<", begin);
    if (end === -1 || !text.startsWith("</Key>", end)) throw refuse("a name in it has no end");
    if (names.length === most) throw refuse(`it has more than ${most} names`);
    names.push(text.slice(begin, end).replace(/&([a-z]{2,4});/g, (whole, name: string) => entities[name] ?? whole));
    at = end;
  }
  return { names, isTruncated: text.includes("<IsTruncated>true</IsTruncated>") };
}
