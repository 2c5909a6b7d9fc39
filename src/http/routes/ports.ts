/** Lists the servers in a capsule. */
import { type Port, PortList } from "../../wire/port.ts";
import { CapsuleParams } from "../../wire/schema.ts";
import { TeamSemaphore } from "../access/in-flight.ts";
import { guestReplyMs, onClosed, requestSignal } from "../client-gone.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";

/** Lists of one team at once. */
export const portListsMax = 8;

export const portsSection: Section = { chapter: "Ports", register };

function register(app: App, { services: { capsules }, bodies }: RouteContext): void {
  const semaphore = new TeamSemaphore(portListsMax);
  app.get(
    "/capsules/:id/ports",
    {
      config: {
        action: "portList",
        audit: { action: "port.list", read: true },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "listPorts",
        summary: "List ports on which servers in the capsule listen",
        description: "TCP only, at most 1 000. It resumes no capsule.",
        params: CapsuleParams,
        response: { 200: PortList },
      },
    },
    async ({ identity, params }, reply) => {
      const leave = await semaphore.acquire(identity.teamId, requestSignal(reply));
      onClosed(reply, leave);
      const { id } = params;
      return await capsules.use(identity.teamId, id, "portList", async (agent) => {
        const listening = await agent.ports(requestSignal(reply, guestReplyMs));
        const isPublic = new Set(capsules.portAccess(id)?.publicPorts);
        const urls = bodies.portUrl(id);
        return listening.map(
          ({ port, address, pid, cmd }): Port => ({
            ...{ port, address, pid: pid ?? null, cmd },
            ...{ public: isPublic.has(port), url: urls.replace("{port}", String(port)) },
          }),
        );
      });
    },
  );
}
