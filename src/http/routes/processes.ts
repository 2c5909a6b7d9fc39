/** Processes of a capsule: list, kill. */
import Type from "typebox";
import { ProcessList, ProcessParams, SignalQuery } from "../../wire/process.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { TeamSemaphore } from "../access/places.ts";
import { note } from "../audit-trail.ts";
import { onAnswered, patience, promptMs } from "../client-gone.ts";
import type { App, RouteContext } from "../route.ts";
import { selectorOf } from "./selector.ts";

/** Lists of one team at once. A guest that lies makes one 16 MiB long. */
const listsMax = 8;

export function processRoutes(app: App, { services: { capsules } }: RouteContext): void {
  const places = new TeamSemaphore(listsMax);
  app.get(
    "/capsules/:id/processes",
    {
      config: { action: "processes", refuses: ["quota_exceeded", "agent_error"] },
      schema: { summary: "List processes", params: CapsuleParams, response: { 200: ProcessList } },
    },
    async ({ identity, params }, reply) => {
      onAnswered(reply, await places.acquire(identity.teamId, patience(reply)));
      const agent = await capsules.enter(identity.teamId, params.id, "processes");
      return { processes: await agent.processes(patience(reply, promptMs)) };
    },
  );

  app.delete(
    "/capsules/:id/processes/:selector",
    {
      config: { action: "processes", audit: "process.kill", refuses: ["quota_exceeded", "agent_error"] },
      schema: {
        summary: "Signal a process and its group",
        params: ProcessParams,
        querystring: SignalQuery,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { identity, params, query } = request;
      note(request, { subject: params.selector });
      const agent = await capsules.enter(identity.teamId, params.id, "processes");
      await agent.signal(selectorOf(params.selector), query.signal ?? "SIGKILL", patience(reply, promptMs));
      return reply.code(204).send(null);
    },
  );
}
