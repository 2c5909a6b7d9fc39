/** `capsule login` and `capsule context`: which service the other commands use. */
import { Client } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { readContexts, writeContexts } from "./contexts.ts";
import { exitCodes, Failure } from "./failures.ts";
import { note, printJson, printLine, table } from "./screen.ts";
import { secretLine } from "./secrets.ts";

const namePattern = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,62}$/;

/** The key is tried before anything is written. */
export async function login(call: Call): Promise<number> {
  const url = serverUrl(call.words[0]!);
  const name = call.text("context") ?? new URL(url).host.replace(/[^A-Za-z0-9._:-]/g, "");
  if (!namePattern.test(name)) {
    throw new UsageError(
      `--context takes up to 63 letters, digits, dots, dashes, colons and underscores, not ${JSON.stringify(name)}`,
    );
  }
  const apiKey = (await secretLine("API key")).trim();
  if (!/^[!-~]+$/.test(apiKey)) throw new Failure("no key was given");
  const { team, keyName } = await new Client({ url, apiKey }).session();
  const { contexts } = readContexts();
  writeContexts({ current: name, contexts: { ...contexts, [name]: { url, apiKey } } });
  if (call.isJson) await printJson({ context: name, url, team, keyName });
  else note(`Logged in to ${url} as team ${team} with the key ${JSON.stringify(keyName)}. Context: ${name}`);
  return exitCodes.done;
}

/** Lists the contexts, or chooses one. */
export async function context(call: Call): Promise<number> {
  const [name] = call.words;
  const known = readContexts();
  if (name !== undefined) {
    if (!Object.hasOwn(known.contexts, name)) {
      throw new Failure(
        `there is no context ${JSON.stringify(name)}`,
        "capsule context lists them; capsule login URL makes one.",
      );
    }
    writeContexts({ ...known, current: name });
    known.current = name;
  }
  const listed = Object.entries(known.contexts).map(([each, { url }]) => ({
    name: each,
    url,
    current: each === known.current,
  }));
  if (call.isJson) await printJson(listed);
  else if (name !== undefined) note(`The context is ${name}.`);
  else if (listed.length === 0) note("There are no contexts. Make one: capsule login URL");
  else
    await printLine(
      table(
        ["", "NAME", "URL"],
        listed.map((each) => [each.current ? "*" : "", each.name, each.url]),
      ),
    );
  return exitCodes.done;
}

function serverUrl(given: string): string {
  if (URL.canParse(given) && /^https?:$/.test(new URL(given).protocol)) return given.replace(/\/+$/, "");
  throw new UsageError(`${JSON.stringify(given)} is no URL of a server; example: https://capsules.example.org`);
}
