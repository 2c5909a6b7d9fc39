/** Lists directories, and shows single entries. */
import { FileListing, ListBody, OneEntry, PathBody } from "../../../wire/file.ts";
import { CapsuleParams } from "../../../wire/schema.ts";
import { TeamSemaphore } from "../../access/in-flight.ts";
import { addAuditDetails } from "../../audit-trail.ts";
import { guestReplyMs, onClosed, requestSignal } from "../../client-gone.ts";
import { entryBody } from "../../file-entry.ts";
import { checkPath } from "../../guest-path.ts";
import { JsonListing } from "../../large-answer.ts";
import type { App } from "../../route.ts";
import type { RouteContext, Section } from "../../section.ts";

/** Listings of one team at once. */
export const listingsMax = 8;

export const fileListSection: Section = { chapter: "Files", register };

function register(app: App, context: RouteContext): void {
  listRoute(app, context);
  statRoute(app, context);
}

function listRoute(app: App, { services: { capsules }, limits, answers }: RouteContext): void {
  const semaphore = new TeamSemaphore(listingsMax);
  app.post(
    "/capsules/:id/files/list",
    {
      config: {
        action: "files",
        audit: { action: "file.list", read: true },
        refuses: ["quota_exceeded", "agent_error", "no_capacity"],
      },
      schema: {
        operationId: "listFiles",
        summary: "List a directory",
        example: { path: "/root", depth: 2 },
        params: CapsuleParams,
        body: ListBody(limits),
        response: { 200: FileListing },
      },
    },
    async (request, reply) => {
      addAuditDetails(request, { subject: request.body.path });
      const { depth = 1 } = request.body;
      const path = checkPath(request.body.path, limits.path_max_bytes);
      const signal = requestSignal(reply);
      const charge = answers.open(request.identity.teamId);
      const leave = await semaphore.acquire(request.identity.teamId, signal);
      onClosed(reply, () => {
        leave();
        charge.release();
      });
      return await capsules.use(request.identity.teamId, request.params.id, "files", async (agent) => {
        const listing = new JsonListing("entries", charge, entryBody);
        const { list_entries_max: entriesMax, listing_max_bytes: bytesMax } = limits;
        await agent.list({ path, depth, entriesMax, bytesMax }, listing, signal);
        return listing.send(reply);
      });
    },
  );
}

function statRoute(app: App, { services: { capsules }, limits }: RouteContext): void {
  app.post(
    "/capsules/:id/files/stat",
    {
      config: {
        action: "files",
        audit: { action: "file.list", read: true },
        refuses: ["quota_exceeded", "agent_error", "conflict"],
      },
      schema: {
        operationId: "statFile",
        summary: "Get a file's entry; a link at the end is not followed",
        example: { path: "/etc/hostname" },
        params: CapsuleParams,
        body: PathBody,
        response: { 200: OneEntry },
      },
    },
    async (request, reply) => {
      const { identity, params, body } = request;
      addAuditDetails(request, { subject: body.path });
      const found = await capsules.use(identity.teamId, params.id, "files", (agent) =>
        agent.stat(checkPath(body.path, limits.path_max_bytes), requestSignal(reply, guestReplyMs)),
      );
      return { entry: entryBody(found) };
    },
  );
}
