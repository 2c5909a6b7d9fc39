/** `capsule events`: the changes of the team's capsules and templates, a line each, until Ctrl-C. */
import type { ServiceEvent } from "../sdk/sdk.ts";
import type { Call } from "./command.ts";
import { exitCodes } from "./failures.ts";
import { note, printable, printJson, printLine } from "./screen.ts";

export async function events(call: Call): Promise<number> {
  const stop = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop.abort());
  const client = await call.client();
  const onState = (state: "live" | "reconnecting") => {
    if (state === "reconnecting") note("capsule events: the connection is lost; connecting again");
  };
  for await (const event of client.events({ signal: stop.signal, onState })) {
    if (call.isJson) await printJson(event);
    else if (event.type !== "reset") await printLine(`${new Date().toISOString()} ${lineOf(event)}`);
  }
  return exitCodes.done;
}

function lineOf(event: Exclude<ServiceEvent, { type: "reset" }>): string {
  switch (event.type) {
    case "capsule": {
      const { id, name, status } = event.capsule;
      return printable([event.type, id, status, ...(name === null ? [] : [name])].join(" "));
    }
    case "capsule-removed":
      return `${event.type} ${event.id}`;
    case "template":
      return printable(`${event.type} ${event.template.name}`);
    case "template-removed":
      return printable(`${event.type} ${event.name}`);
  }
}
