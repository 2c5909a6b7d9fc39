/** How a background process ended: held until it does, and told for a while afterwards. */
import type { Agent, Selector } from "../../agent/agent.ts";
import { waitDefaultSec } from "../../wire/capsule.ts";
import { ExitQuery, ProcessExit, ProcessParams } from "../../wire/process.ts";
import { patience } from "../client-gone.ts";
import type { App, RouteContext } from "../route.ts";
import { selectorOf } from "./selector.ts";

export function processExitRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.get(
    "/capsules/:id/processes/:selector/exit",
    {
      config: { action: "processes", refuses: ["quota_exceeded", "agent_error"] },
      schema: {
        summary: "Wait for the end of a background process (an extension)",
        params: ProcessParams,
        querystring: ExitQuery(limits),
        response: { 200: ProcessExit },
      },
    },
    async ({ identity, params, query }, reply) => {
      const agent = await capsules.enter(identity.teamId, params.id, "processes");
      const heldMs = (query.timeout ?? waitDefaultSec(limits)) * 1_000;
      try {
        return { exit_code: await exitWithin(agent, selectorOf(params.selector), heldMs, patience(reply)) };
      } catch (error) {
        await capsules.enter(identity.teamId, params.id, "processes"); // a capsule that was paused or destroyed meanwhile says so
        throw error;
      }
    },
  );
}

/** null: it runs still. */
async function exitWithin(
  agent: Agent,
  selector: Selector,
  heldMs: number,
  abandoned: AbortSignal,
): Promise<number | null> {
  const late = AbortSignal.timeout(heldMs);
  try {
    return (await agent.exit(selector, AbortSignal.any([abandoned, late]))).exitCode;
  } catch (error) {
    if (error === late.reason) return null;
    throw error;
  }
}
