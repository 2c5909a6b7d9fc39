/** Changes of the team's capsules and templates as server-sent events, which a client can resume. */
import type { Readable } from "node:stream";
import Type from "typebox";
import { EventStreamHeaders, eventData, eventStreamType } from "../../wire/event.ts";
import { EventFeed } from "../event-feed.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import { templateBody } from "./snapshots.ts";

const heartbeatMs = 15_000;
const Stream = { content: { [eventStreamType]: { schema: Type.Unsafe<Readable>({ type: "string" }) } } };

export const eventsSection: Section = { chapter: "Service", register };

function register(app: App, { services: { teams, capsules, templates, remoteEvents }, bodies }: RouteContext): void {
  const feed = new EventFeed();
  const unsubscribes = [
    capsules.onChange((teamId, id, view) => {
      if (view === undefined) feed.publish(teamId, "capsule-removed", () => ({ id }));
      else feed.publish(teamId, "capsule", () => bodies.of(view));
    }),
    templates.onChange((teamId, name, view) => {
      if (view === undefined) feed.publish(teamId, "template-removed", () => ({ name }));
      else feed.publish(teamId, "template", () => templateBody(view));
    }),
  ];
  const heartbeat = setInterval(() => feed.heartbeat(), heartbeatMs).unref();
  app.addHook("preClose", (done) => {
    clearInterval(heartbeat);
    for (const unsubscribe of unsubscribes) unsubscribe();
    feed.close();
    done();
  });

  app.get(
    "/events",
    {
      exposeHeadRoute: false,
      config: {
        endless: true,
        headers: ["Cache-Control", "X-Accel-Buffering"],
        refuses: ["quota_exceeded"],
      },
      schema: {
        operationId: "streamEvents",
        summary: "Stream changes as server-sent events",
        headers: EventStreamHeaders,
        response: { 200: Stream },
        ...{ "x-events": eventData },
      },
    },
    async ({ identity, headers }, reply) => {
      const unfollow = await remoteEvents?.follow(identity.teamId);
      const { stream, end } = subscribed(() => feed.subscribe(identity.teamId, headers["last-event-id"]), unfollow);
      if (unfollow !== undefined) stream.once("close", unfollow);
      stream.once("close", teams.onRevoked(identity.keyId, end));
      return reply
        .type(eventStreamType)
        .header("cache-control", "no-store")
        .header("x-accel-buffering", "no")
        .send(stream);
    },
  );
}

/** Throws as `subscribe`, and then follows nothing. */
function subscribed<T>(subscribe: () => T, unfollow: (() => void) | undefined): T {
  try {
    return subscribe();
  } catch (error) {
    unfollow?.();
    throw error;
  }
}
