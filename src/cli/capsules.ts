/** The life cycle of capsules: create, ls, rm, pause, resume, snapshot. */
import type { Capsule } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes, report } from "./failures.ts";
import { capsuleTable, note, printJson, printLine } from "./screen.ts";
import { capsuleBy, serviceUrl } from "./service.ts";

export async function create(call: Call): Promise<number> {
  const client = await call.client();
  const stop = new AbortController();
  process.once("SIGINT", () => stop.abort(new Error("interrupted; the capsule is destroyed")));
  const [template, vcpus, memoryMb, timeoutSec] = [
    call.text("template"),
    call.number("vcpus"),
    call.number("memory"),
    call.number("timeout"),
  ];
  const capsule = await client.create({
    ...(template === undefined ? {} : { template }),
    ...(vcpus === undefined ? {} : { vcpus }),
    ...(memoryMb === undefined ? {} : { memoryMb }),
    ...(timeoutSec === undefined ? {} : { timeoutSec }),
    wait: !call.isSet("no-wait"),
    signal: stop.signal,
  });
  if (call.isJson) await printJson(capsule);
  else await printLine(capsule.id);
  if (process.stdout.isTTY && !call.isJson)
    note(`The capsule is ${capsule.status}. Open a terminal in it: capsule shell ${capsule.id}`);
  return exitCodes.done;
}

export async function ls(call: Call): Promise<number> {
  const client = await call.client();
  if (call.isSet("watch")) return (await import("./watch.ts")).watch(client, call);
  const capsules = await client.list();
  if (call.isJson) await printJson(capsules);
  else if (call.isSet("quiet")) for (const { id } of capsules) await printLine(id);
  else if (capsules.length === 0) note("There are no capsules. Create one: capsule create");
  else await printLine(capsuleTable(capsules.map(({ info }) => info)));
  return exitCodes.done;
}

export async function rm(call: Call): Promise<number> {
  return each(call, async (capsule) => {
    await capsule.destroy();
    return call.isJson ? { id: capsule.id } : capsule.id;
  });
}

export function pause(call: Call): Promise<number> {
  return each(call, async (capsule) => statusLine(call, await capsule.pause()));
}

export function resume(call: Call): Promise<number> {
  return each(call, async (capsule) => statusLine(call, await capsule.resume()));
}

function statusLine(call: Call, capsule: Capsule): unknown {
  return call.isJson ? capsule : `${capsule.id} is ${capsule.status}`;
}

/** One capsule after the other; a failure does not stop the rest. */
async function each(call: Call, work: (capsule: Capsule) => Promise<unknown>): Promise<number> {
  const client = await call.client();
  let code: number = exitCodes.done;
  for (const id of call.words) {
    try {
      const result = await work(await capsuleBy(client, id));
      await (typeof result === "string" ? printLine(result) : printJson(result));
    } catch (error) {
      if (call.words.length === 1) throw error;
      report(id, error, { isJson: call.isJson, url: serviceUrl() });
      code = exitCodes.failed;
    }
  }
  return code;
}

export async function snapshot(call: Call): Promise<number> {
  const [id, name] = call.words;
  if (id === undefined) throw new UsageError("an argument is missing");
  const capsule = await capsuleBy(await call.client(), id);
  const template = await capsule.snapshot(name, { overwrite: call.isSet("overwrite") });
  if (call.isJson) await printJson(template);
  else await printLine(template.name);
  if (process.stdout.isTTY && !call.isJson) note(`Start a capsule from it: capsule create --template ${template.name}`);
  return exitCodes.done;
}
