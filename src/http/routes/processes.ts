/** Processes of a capsule: list, signal, wait for the exit of a background process, read its kept output. */
import Type from "typebox";
import type { Agent, GuestProcess, Selector } from "../../agent/agent.ts";
import { waitDefaultSec } from "../../wire/capsule.ts";
import { CapsuleError } from "../../wire/errors.ts";
import {
  ExitQuery,
  LogsQuery,
  type Process,
  ProcessExit,
  ProcessList,
  ProcessListQuery,
  ProcessParams,
  SignalQuery,
} from "../../wire/process.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { TeamSemaphore } from "../access/in-flight.ts";
import { addAuditDetails } from "../audit-trail.ts";
import { Bytes, bytesType } from "../bytes.ts";
import { guestReplyMs, onClosed, requestSignal } from "../client-gone.ts";
import { JsonListing } from "../large-answer.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

/** Lists of one team at once. */
export const processListsMax = 8;
/** The largest PID that Linux can be configured to use. */
const pidMax = 2 ** 22;

export const processesSection: Section = { chapter: "Execution", register };

function register(app: App, context: RouteContext): void {
  listRoute(app, context);
  signalRoute(app, context);
  exitRoute(app, context);
  logsRoute(app, context);
}

function listRoute(app: App, { services: { capsules }, answers }: RouteContext): void {
  const semaphore = new TeamSemaphore(processListsMax);
  app.get(
    "/capsules/:id/processes",
    {
      config: {
        action: "processes",
        mayDeclineResume: true,
        audit: { action: "process.list", read: true },
        refuses: ["quota_exceeded", "agent_error", "no_capacity"],
      },
      schema: {
        operationId: "listProcesses",
        summary: "List processes",
        params: CapsuleParams,
        querystring: ProcessListQuery,
        response: { 200: ProcessList },
      },
    },
    async ({ identity, params, query }, reply) => {
      const charge = answers.open(identity.teamId);
      const leave = await semaphore.acquire(identity.teamId, requestSignal(reply));
      onClosed(reply, () => {
        leave();
        charge.release();
      });
      const list = async (agent: Pick<Agent, "processes">) => {
        const listing = new JsonListing("processes", charge, processBody);
        await agent.processes(listing, requestSignal(reply, guestReplyMs));
        return listing.send(reply);
      };
      return await capsules.use(identity.teamId, params.id, "processes", list, { mayResume: query.resume !== "false" });
    },
  );
}

function signalRoute(app: App, { services: { capsules } }: RouteContext): void {
  app.delete(
    "/capsules/:id/processes/:selector",
    {
      config: { action: "processes", audit: { action: "process.kill" }, refuses: ["quota_exceeded", "agent_error"] },
      schema: {
        operationId: "signalProcess",
        summary: "Signal a process and its group",
        params: ProcessParams,
        querystring: SignalQuery,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      addAuditDetails(request, { subject: params.selector });
      await capsules.use(identity.teamId, params.id, "processes", (agent) =>
        agent.signal(selectorOf(params.selector), query.signal ?? "SIGKILL", requestSignal(reply, guestReplyMs)),
      );
      return reply.code(204).send(null);
    },
  );
}

function exitRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.get(
    "/capsules/:id/processes/:selector/exit",
    {
      config: { action: "processes", refuses: ["quota_exceeded", "agent_error"] },
      schema: {
        operationId: "waitForProcess",
        summary: "Wait for the end of a background process (an extension)",
        params: ProcessParams,
        querystring: ExitQuery(limits),
        response: { 200: ProcessExit },
      },
    },
    async ({ identity, params, query }, reply) => {
      const timeoutMs = (query.timeout ?? waitDefaultSec(limits)) * 1_000;
      const exitCode = await capsules.use(identity.teamId, params.id, "processes", (agent) =>
        exitWithin(agent, selectorOf(params.selector), timeoutMs, requestSignal(reply)),
      );
      return { exit_code: exitCode };
    },
  );
}

function logsRoute(app: App, { services: { capsules } }: RouteContext): void {
  app.get(
    "/capsules/:id/processes/:selector/logs",
    {
      config: {
        action: "processes",
        audit: { action: "process.logs", read: true },
        headers: ["X-Dropped-Bytes"],
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "readLogs",
        summary: "Read the kept output of a background process",
        params: ProcessParams,
        querystring: LogsQuery,
        response: { 200: Bytes },
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      addAuditDetails(request, { subject: params.selector });
      return await capsules.use(identity.teamId, params.id, "processes", async (agent) => {
        const asked = { stream: query.stream ?? ("both" as const), tail: query.tail };
        const { dropped, body } = await agent.logs(selectorOf(params.selector), asked, requestSignal(reply));
        return reply.type(bytesType).header("x-dropped-bytes", dropped).send(body);
      });
    },
  );
}

function processBody({ pid, tag, cmd, args, user, startedAtMs, kind }: GuestProcess): Process {
  return {
    ...{ pid, tag, cmd, args },
    ...(user === undefined ? {} : { user }),
    ...(startedAtMs === undefined ? {} : { started_at: startedAtMs }),
    ...(kind === undefined ? {} : { kind }),
  };
}

/** null: still running after `timeoutMs`. */
async function exitWithin(
  agent: Pick<Agent, "exit">,
  selector: Selector,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<number | null> {
  const timeout = AbortSignal.timeout(timeoutMs);
  try {
    return (await agent.exit(selector, AbortSignal.any([signal, timeout]))).exitCode;
  } catch (error) {
    if (error === timeout.reason) return null;
    throw error;
  }
}

/** In a URL, digits are a PID and any other text is a tag. Throws not_found for PID 1 and for impossible values. */
export function selectorOf(text: string): Selector {
  if (!/^[0-9]+$/.test(text)) {
    if (text === "" || text.includes("\0") || text.length > 64) throw noSuchProcess(text);
    return { tag: text };
  }
  const pid = Number(text);
  if (pid <= 1 || pid > pidMax) throw noSuchProcess(text);
  return { pid };
}

function noSuchProcess(text: string): CapsuleError {
  return new CapsuleError("not_found", `process ${JSON.stringify(text.slice(0, 100))} does not exist`);
}
