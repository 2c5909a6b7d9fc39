/** The life cycle of capsules: create, ls, rm, pause, resume, stop, start, snapshot. */
import type {
  Capsule,
  CapsuleChange,
  CapsulePolicies,
  CapsuleStatus,
  CreateOptions,
  DeadlineAction,
} from "../sdk/sdk.ts";
import { type Call, secondsIn, UsageError } from "./command.ts";
import { environment } from "./exec.ts";
import { exitCodes, report } from "./failures.ts";
import { networkOptionsOf } from "./network.ts";
import { capsuleTable, note, printJson, printLine } from "./screen.ts";
import { capsuleBy, serviceUrl } from "./service.ts";
import { startingSlowly, Waiting } from "./waiting.ts";

export async function create(call: Call): Promise<number> {
  const options = createOptions(call);
  const client = await call.client();
  const stop = new AbortController();
  process.once("SIGINT", () => stop.abort(new Error("interrupted")));
  const waiting = new Waiting(!call.isJson);
  waiting.begins(startingSlowly);
  const creation = client.create({ ...options, wait: !call.isSet("no-wait"), signal: stop.signal });
  const capsule = await creation.finally(() => waiting.ends());
  if (call.isJson) await printJson(capsule);
  else await printLine(capsule.id);
  if (process.stdout.isTTY && !call.isJson)
    note(`The capsule is ${capsule.status}. Open a terminal in it: capsule shell ${capsule.id}`);
  return exitCodes.done;
}

/** The options of `create` and `run` that are about the capsule. */
export function createOptions(call: Call): CreateOptions {
  const [word] = call.words;
  if (word !== undefined && call.text("template") !== undefined)
    throw new UsageError("the template is given twice: as an argument and by --template");
  const given = {
    name: call.text("name"),
    template: word ?? call.text("template"),
    vcpus: call.number("vcpus"),
    memoryMb: call.mebibytes("memory"),
    diskMb: call.mebibytes("disk"),
    network: networkOptionsOf(call),
    ...policiesOf(call),
  };
  return {
    ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
    labels: Object.fromEntries(call.list("label").map(labelOf)),
    envs: environment(call.list("env")),
  };
}

/** The policies that the command line has. */
function policiesOf(call: Call): CapsulePolicies {
  const given = {
    timeoutSec: call.seconds("timeout"),
    onTimeout: actionIn("--on-timeout", call.text("on-timeout")),
    lifetimeSec: call.seconds("lifetime"),
    onExpiry: actionIn("--on-expiry", call.text("on-expiry")),
    retentionSec: call.seconds("retention"),
    autoResume: call.isSet("auto-resume") || undefined,
  };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}

function actionIn(name: string, text: string | undefined): DeadlineAction | undefined {
  if (text === undefined || text === "pause" || text === "destroy") return text;
  throw new UsageError(`${name} takes pause or destroy, not ${JSON.stringify(text)}`);
}

export async function ls(call: Call): Promise<number> {
  const client = await call.client();
  if (call.isSet("watch")) return (await import("./watch.ts")).watch(client, call);
  const status = call.text("status");
  const name = call.text("name");
  const capsules = await client.list({
    ...(status === undefined ? {} : { status: status.split(",") as CapsuleStatus[] }),
    labels: Object.fromEntries(call.list("label").map(labelOf)),
    ...(name === undefined ? {} : { name }),
  });
  if (call.isJson) await printJson(capsules);
  else if (call.isSet("quiet")) for (const { id } of capsules) await printLine(id);
  else if (capsules.length === 0) note(emptyList(call));
  else await printLine(capsuleTable(capsules.map(({ info }) => info)));
  return exitCodes.done;
}

function emptyList(call: Call): string {
  const isFiltered =
    call.text("status") !== undefined || call.text("name") !== undefined || call.list("label").length > 0;
  return isFiltered ? "No capsule fits." : "There are no capsules. Create one: capsule create";
}

function labelOf(text: string): [key: string, value: string] {
  const at = text.indexOf("=");
  if (at < 1) throw new UsageError(`--label takes KEY=VALUE, not ${JSON.stringify(text)}`);
  return [text.slice(0, at), text.slice(at + 1)];
}

/** Characters after `cl-` of an id that `rm` takes as a prefix. */
const removedPrefixLeast = 6;

export async function rm(call: Call): Promise<number> {
  const remove = async (capsule: Capsule) => {
    await capsule.destroy();
    return call.isJson ? { id: capsule.id } : `${capsule.id} is destroyed`;
  };
  return each("rm", call, remove, removedPrefixLeast);
}

export async function set(call: Call): Promise<number> {
  const [id, ...words] = call.words;
  const change = changeOf(words);
  const capsule = await capsuleBy(await call.client(), id!);
  await capsule.update(change);
  if (call.isJson) await printJson(capsule);
  return exitCodes.done;
}

function changeOf(words: string[]): CapsuleChange {
  const change: CapsuleChange = {};
  const labels: Record<string, string | null> = {};
  for (const word of words) {
    const [key, value] = settingOf(word);
    if (key.startsWith("label.")) labels[key.slice("label.".length)] = value === "" ? null : value;
    else if (Object.hasOwn(setters, key)) setters[key as keyof typeof setters](change, value);
    else
      throw new UsageError(`${JSON.stringify(key)} cannot be set; ${Object.keys(setters).join(", ")}, label.KEY can`);
  }
  return Object.keys(labels).length === 0 ? change : { ...change, labels };
}

const setters = {
  name(change: CapsuleChange, value: string) {
    change.name = value === "" ? null : value;
  },
  timeout_sec(change: CapsuleChange, value: string) {
    change.timeoutSec = secondsIn("timeout_sec", value);
  },
  on_timeout(change: CapsuleChange, value: string) {
    change.onTimeout = actionIn("on_timeout", value)!;
  },
  lifetime_sec(change: CapsuleChange, value: string) {
    change.lifetimeSec = secondsIn("lifetime_sec", value);
  },
  on_expiry(change: CapsuleChange, value: string) {
    change.onExpiry = actionIn("on_expiry", value)!;
  },
  retention_sec(change: CapsuleChange, value: string) {
    change.retentionSec = secondsIn("retention_sec", value);
  },
  auto_resume(change: CapsuleChange, value: string) {
    if (value !== "true" && value !== "false")
      throw new UsageError(`auto_resume takes true or false, not ${JSON.stringify(value)}`);
    change.autoResume = value === "true";
  },
};

function settingOf(word: string): [key: string, value: string] {
  const at = word.indexOf("=");
  if (at < 1) throw new UsageError(`set takes KEY=VALUE, not ${JSON.stringify(word)}`);
  return [word.slice(0, at), word.slice(at + 1)];
}

export function pause(call: Call): Promise<number> {
  return each("pause", call, async (capsule) => statusLine(call, await capsule.pause()));
}

export function resume(call: Call): Promise<number> {
  return each("resume", call, async (capsule) => statusLine(call, await capsule.resume()));
}

/** Every field of each, for people on several lines. */
export function inspect(call: Call): Promise<number> {
  return each("inspect", call, async (capsule) => {
    return call.isJson ? capsule : JSON.stringify(capsule, undefined, 2);
  });
}

export function stop(call: Call): Promise<number> {
  return each("stop", call, async (capsule) => statusLine(call, await capsule.stop()));
}

export function start(call: Call): Promise<number> {
  return each("start", call, async (capsule) => statusLine(call, await capsule.start()));
}

function statusLine(call: Call, capsule: Capsule): unknown {
  return call.isJson ? capsule : `${capsule.id} is ${capsule.status}`;
}

/** One capsule after the other, each once; a failure does not stop the rest. `name`: of the command. */
async function each(
  name: string,
  call: Call,
  work: (capsule: Capsule) => Promise<unknown>,
  prefixLeast?: number,
): Promise<number> {
  const client = await call.client();
  const done = new Set<string>();
  let code: number = exitCodes.done;
  for (const id of call.words) {
    try {
      const capsule = await capsuleBy(client, id, prefixLeast);
      if (done.has(capsule.id)) continue;
      done.add(capsule.id);
      const result = await work(capsule);
      await (typeof result === "string" ? printLine(result) : printJson(result));
    } catch (error) {
      if (call.words.length === 1) throw error;
      report(name, error, { isJson: call.isJson, url: serviceUrl() });
      code = exitCodes.failed;
    }
  }
  return code;
}

export async function snapshot(call: Call): Promise<number> {
  const [id, name] = call.words as [string, string?];
  const capsule = await capsuleBy(await call.client(), id);
  const template = await capsule.snapshot(name, { overwrite: call.isSet("overwrite") });
  if (call.isJson) await printJson(template);
  else await printLine(template.name);
  if (process.stdout.isTTY && !call.isJson) note(`Start a capsule from it: capsule create --template ${template.name}`);
  return exitCodes.done;
}
