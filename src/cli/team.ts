/** A team's templates, keys, limits and sign-in links: templates, keys, limits, open. */
import { Client } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { ago, note, printJson, printLine, sized, table } from "./screen.ts";
import { keyHere, serviceUrl } from "./service.ts";

export async function templates(call: Call): Promise<number> {
  const [verb = "ls", ...names] = call.words;
  const client = await call.client();
  if (verb === "rm" && names.length > 0) {
    for (const name of names) {
      await client.templates.remove(name);
      await (call.isJson ? printJson({ name }) : printLine(`${name} is deleted`));
    }
    return exitCodes.done;
  }
  if (verb !== "ls" || names.length > 0) throw new UsageError("use templates ls or templates rm NAME…");
  const list = await client.templates.list();
  if (call.isJson) await printJson(list);
  else {
    const rows = list.map(({ name, type, vcpus, memoryMb, sizeBytes, createdAt }) => [
      name,
      type,
      vcpus === null ? "-" : String(vcpus),
      memoryMb === null ? "-" : `${memoryMb} MiB`,
      sized(sizeBytes),
      ago(createdAt),
    ]);
    await printLine(table(["NAME", "TYPE", "VCPUS", "MEMORY", "SIZE", "CREATED"], rows));
  }
  return exitCodes.done;
}

export async function keys(call: Call): Promise<number> {
  const [verb = "ls", ...rest] = call.words;
  const client = await call.client();
  if (verb === "ls" && rest.length === 0) {
    const list = await client.keys.list();
    if (call.isJson) await printJson(list);
    else {
      const rows = list.map(({ id, name, prefix, createdAt, lastUsedAt, expiresAt, current }) => [
        id,
        current ? `${name} (this one)` : name,
        prefix === null ? "-" : `${prefix}…`,
        ago(createdAt),
        ago(lastUsedAt),
        expiresAt ?? "never",
      ]);
      await printLine(table(["ID", "NAME", "PREFIX", "CREATED", "USED", "EXPIRES"], rows));
    }
    return exitCodes.done;
  }
  if (verb === "new" && rest.length === 1) {
    const made = await client.keys.create(rest[0]!);
    if (call.isJson) await printJson(made);
    else await printLine(made.key);
    if (process.stdout.isTTY) note("The key is not shown again.");
    return exitCodes.done;
  }
  if (verb === "rm" && rest.length > 0) {
    for (const id of rest) {
      await client.keys.revoke(id);
      await (call.isJson ? printJson({ id }) : printLine(`${id} is revoked`));
    }
    return exitCodes.done;
  }
  throw new UsageError("use keys ls, keys new NAME or keys rm KEY_ID…");
}

export async function limits(call: Call): Promise<number> {
  const list = await (await call.client()).request<Record<string, unknown>>({ method: "GET", path: "/v1/limits" });
  if (call.isJson) await printJson(list);
  else await printLine(table(["LIMIT", "VALUE"], flat(list)));
  return exitCodes.done;
}

/** Nested names joined by dots, values with their units. */
function flat(values: Record<string, unknown>, prefix = ""): string[][] {
  return Object.entries(values).flatMap(([name, value]) =>
    value !== null && typeof value === "object"
      ? flat(value as Record<string, unknown>, `${prefix}${name}.`)
      : [[`${prefix}${name}`, value === null ? "none" : withUnit(name, value)]],
  );
}

const mib = 1024 * 1024;
const times: [unit: string, sec: number][] = [
  ["days", 86_400],
  ["h", 3_600],
  ["min", 60],
];

/** By the unit at the end of the limit's name: bytes and MiB to three digits, times in the largest unit that divides them. */
export function withUnit(name: string, value: unknown): string {
  if (typeof value !== "number") return String(value);
  const [, unit] = /_(bytes|mb|sec|ms)$/.exec(name) ?? [];
  if (unit === "bytes" || unit === "mb") return sized(unit === "mb" ? value * mib : value).replace(".0 ", " ");
  if (unit === "ms") return `${value} ms`;
  if (unit !== "sec" || name.endsWith("_per_sec")) return String(value);
  const [largest, sec] = times.find(([, each]) => value >= 2 * each && value % each === 0) ?? ["s", 1];
  return `${value / sec} ${largest}`;
}

/** Its own version, and the server's if one answers. */
export async function version(call: Call): Promise<number> {
  const client = await call.version();
  const apiKey = keyHere();
  const health = await new Client({ url: serviceUrl(), ...(apiKey === undefined ? {} : { apiKey }) })
    .health({ timeoutMs: 5_000 })
    .catch(() => undefined);
  const unknown = health === undefined ? "does not answer" : "tells its version to a key only";
  if (call.isJson) await printJson({ client, server: health?.version ?? null });
  else await printLine(`client ${client}\nserver ${health?.version ?? unknown}`);
  return exitCodes.done;
}

export async function open(call: Call): Promise<number> {
  const link = await (await call.client()).signInLink();
  if (call.isJson) await printJson(link);
  else await printLine(link.url);
  if (process.stdout.isTTY && !call.isJson) note(`The link works once, until ${link.expiresAt}.`);
  return exitCodes.done;
}
