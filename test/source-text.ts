/** Source text cut into what the house rules look at. The files are formatted by a tool, so layout can be relied on. */

/** A function's name or first line, and how many lines it spans. */
export interface FunctionSpan {
  line: number;
  lines: number;
  head: string;
}

/** The sentences of one comment, and the line on which it begins. */
export interface Comment {
  line: number;
  sentences: string[];
}

const notCode = /\/\/.*|\/\*[\s\S]*?\*\/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'/g;

/** Identifiers in code; words of comments and quoted strings are none. */
export function identifiersIn(text: string): Set<string> {
  const code = text.replace(notCode, " ").replace(/`(?:\\[\s\S]|[^`\\])*`/g, (template) => interpolations(template));
  return new Set(code.match(/[A-Za-z_$][\w$]*/g));
}

const comment = /\/\*\*?([\s\S]*?)\*\/|(?:^[ \t]*\/\/[/!]?.*\n)+|(?<=[;,{}()] )\/\/.*/gm;
const comments = new RegExp(`${comment.source}|(?<string>"(?:\\\\.|[^"\\\\\\n])*")`, "gm");

/** Every comment, whether it is a block or lines that follow one another. */
export function commentsIn(text: string): Comment[] {
  const found: Comment[] = [];
  for (const match of text.matchAll(comments)) {
    if (match.groups?.string !== undefined) continue;
    const words = match[0].replace(/^[ \t]*(?:\/\*\*?|\/\/[/!]?|\*\/?)|\*\/$/gm, " ").replace(/\s+/g, " ");
    found.push({ line: text.slice(0, match.index).split("\n").length, sentences: sentencesOf(words) });
  }
  return found;
}

/** The sentences of a document: of its paragraphs, list items and cells, without headings and blocks of code. */
export function sentencesIn(markdown: string): string[] {
  const prose = markdown.replace(/^```.*?^```$/gms, "").replace(/^#.*$/gm, "");
  return prose.split(/\n\s*\n|\n *(?:[-*]|\d+\.) |\|/).flatMap(sentencesOf);
}

function sentencesOf(paragraph: string): string[] {
  const words = paragraph.replace(/\s+/g, " ").replace(/^ ?(?:[-*] )?/, "");
  return words.trim().split(/(?<=[.!?](?:\*\*)?) (?=[A-Z`*])/);
}

/** A sentence that is no question and whose subject is a pronoun, or comes after `of`. */
export const lacksNoun = /^(?:Of(?! course)|What|Who|Whoever|Whatever|Those|All else|One (?:that|whose|which))\b[^?]*$/;

function interpolations(template: string): string {
  return [...template.matchAll(/\$\{([^}]*)\}/g)].map(([, code]) => code).join(" ");
}

const opensFunction = /=> [{(]$|\bfunction\b.*\{$|\)(?:: [^=]*)? \{$/;
const opensOtherBlock = /^(?:\} )?(?:if|else|for|while|do|switch|try|catch|finally|class|interface)\b/;

/** Every function, method and arrow function with a body of several lines. */
export function functionsIn(text: string): FunctionSpan[] {
  const lines = text.split("\n");
  const spans: FunctionSpan[] = [];
  for (const [index, line] of lines.entries()) {
    const indent = /^ */.exec(line)![0];
    let first = index;
    while (first > 0 && /^[)}]/.test(lines[first]!.trimStart())) first = previousAt(lines, first, indent);
    const head = lines[first]!.trim();
    if (!opensFunction.test(line) || opensOtherBlock.test(head)) continue;
    const last = lines.findIndex((each, at) => at > index && new RegExp(`^${indent}[})]`).test(each));
    if (last > index) spans.push({ line: first + 1, lines: last - first + 1, head });
  }
  return spans;
}

const waitsForTime = /\bsetImmediate\b|\bsetTimeout\b|\bawait (?:delay|sleep)\(/;
/** It counts, goes through a list, or looks at a clock. */
const endsByItself = /\+\+\)|--\)|\b(?:const|let) [^;]* of |\b(?:performance|Date)\.now\(\)/;

/** Lines of loops that sleep, or wait for a tick of the event loop, until a condition is met: with no end if it never is. */
export function pollersIn(text: string): number[] {
  const lines = text.split("\n");
  const found: number[] = [];
  for (const [index, line] of lines.entries()) {
    const [, indent, word] = /^( *)(while|for|do)\b.*[({]/.exec(line) ?? [];
    if (word === undefined) continue;
    const opens = lines.findIndex((each, at) => at >= index && /[{;]$/.test(each));
    const closes = lines.findIndex((each, at) => at > index && each.startsWith(`${indent}}`));
    const last = lines[opens]!.endsWith("{") ? closes : opens;
    const loop = lines.slice(index, last + 1).join("\n");
    const head = word === "do" ? lines[last]! : lines.slice(index, opens + 1).join(" ");
    if (waitsForTime.test(loop) && !endsByItself.test(head)) found.push(index + 1);
  }
  return found;
}

function previousAt(lines: readonly string[], from: number, indent: string): number {
  for (let at = from - 1; at > 0; at--) if (new RegExp(`^${indent}\\S`).test(lines[at]!)) return at;
  return 0;
}
