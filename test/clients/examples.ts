/** The examples of docs/CLIENTS.md, run as they stand there. */
import { execFile } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { knownClients, python } from "./known-clients.ts";

const document = resolve(import.meta.dirname, "../../docs/CLIENTS.md");
const timeout = 300_000;

export interface Example {
  /** The known client that it needs. */
  client: string;
  language: string;
  code: string;
}

/** Clients of the examples in the document's order. */
const clients = ["curl", "Python urllib", "Python httpx", "Go net/http", "Java HttpClient"];

/** Throws when the document has more or fewer of them than `clients`. */
export function examples(text = readFileSync(document, "utf8")): Example[] {
  const found = [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)];
  if (found.length !== clients.length) {
    throw new Error(
      `docs/CLIENTS.md has ${found.length} examples, and test/clients/examples.ts knows ${clients.length}`,
    );
  }
  return found.map(([, language = "", code = ""], index) => ({ client: clients[index]!, language, code }));
}

export function clientOf({ client }: Example) {
  return knownClients.find(({ name }) => name === client)!;
}

const commands: Record<string, (file: string) => [string, string[]]> = {
  sh: (file) => ["bash", ["-euo", "pipefail", file]],
  python: (file) => [python, [file]],
  go: (file) => ["go", ["run", file]],
  java: (file) => ["java", [file]],
};

/** Resolves with what it printed; throws with that when it fails. */
export async function runExample(
  { language, code }: Example,
  folder: string,
  env: Record<string, string>,
): Promise<string> {
  const file = join(folder, `Example.${language}`);
  writeFileSync(file, code);
  const [program, args] = commands[language]!(file);
  const { stdout } = await promisify(execFile)(program, args, { env: { ...process.env, ...env }, timeout });
  return stdout;
}
