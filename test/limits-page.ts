/** docs/LIMITS.md, written from src/wire/limits.ts and the answer of GET /v1/limits: node test/limits-page.ts */
import { writeFileSync } from "node:fs";
import { resolve } from "node:path";
import { limitRows } from "../src/limits.ts";
import { FixedLimits, Limits } from "../src/wire/limits.ts";
import { Api } from "./api.ts";

const page = resolve(import.meta.dirname, "../docs/LIMITS.md");

const head = `# Limits

Every limit that a client can meet, by its name in \`GET /v1/limits\`, which has the numbers of your server. A request beyond one is
refused with 429 \`quota_exceeded\`, 413 \`too_large\` or 400 \`invalid_request\`, and the message names the limit
([Errors](ERRORS.md)); where a row says that a request waits, or that a connection is closed, that happens instead.
Several hosts that answer as one share the quotas of a team: capsules, starts, running CPUs and memory, templates. Each of them counts rates,
connections, requests under way and bytes by itself.
This page is written by \`node test/limits-page.ts\`.

## With a setting

The operator sets \`CAPSULE_\` and the name in capitals, such as \`CAPSULE_CAPSULES_MAX\` ([Operations](OPERATIONS.md#settings)).

| limit | default | meaning |
|---|---|---|
`;

const fixedHead = `
## Without a setting

The numbers are those of the default settings; some are fixed parts of a limit that has one.

| limit | number | meaning |
|---|---|---|
`;

export async function limitsPage(): Promise<string> {
  const api = new Api();
  try {
    const { json: numbers } = await api.call("GET", "/v1/limits");
    const rows = Object.entries(Limits.properties).map(([name, schema]) => {
      const { fallback, fallbackSaid } = limitRows[name as keyof typeof limitRows];
      return row(name, fallback === fallbackSaid ? inWords(name, Number(fallback)) : fallbackSaid, schema);
    });
    const fixed = Object.entries(FixedLimits.properties).map(([name, schema]) =>
      row(name, inWords(name, numbers[name]), schema),
    );
    return head + rows.join("") + fixedHead + fixed.join("");
  } finally {
    await api.app.close();
  }
}

function row(name: string, number: string, schema: object): string {
  const { description = "" } = schema as { description?: string };
  return `| \`${name}\` | ${number} | ${description.replace(/(, MiB)?\.$/, "")} |\n`;
}

/** With the unit that the name ends with. */
function inWords(name: string, value: number): string {
  const unit = [["GiB", 2 ** 30] as const, ["MiB", 2 ** 20] as const, ["KiB", 2 ** 10] as const].find(
    ([, size]) => /_bytes$/.test(name) && value >= size && value % size === 0,
  );
  if (unit !== undefined) return `${value / unit[1]} ${unit[0]}`;
  const grouped = String(value).replace(/\B(?=(\d{3})+$)/g, " ");
  if (/_bytes$/.test(name)) return `${grouped} bytes`;
  if (/_mb$/.test(name)) return `${grouped} MiB`;
  return /_sec$/.test(name) && !/per_sec$/.test(name) ? `${grouped} s` : grouped;
}

if (import.meta.main) writeFileSync(page, await limitsPage());
