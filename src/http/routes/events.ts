/** Changes of the team's capsules and templates as server-sent events, which a client can resume. */
import type { Readable } from "node:stream";
import Type from "typebox";
import { EventStreamHeaders, eventData, eventStreamType } from "../../wire/event.ts";
import type { CapsuleBodies } from "../capsule-bodies.ts";
import { EventFeed, type SharedEvent, type Subscription } from "../event-feed.ts";
import type { App } from "../route.ts";
import type { RouteContext, Section } from "../section.ts";
import type { Opened, Services, SharedChange } from "../services.ts";
import { templateBody } from "./snapshots.ts";

const heartbeatMs = 15_000;
const Stream = { content: { [eventStreamType]: { schema: Type.Unsafe<Readable>({ type: "string" }) } } };

export const eventsSection: Section = { chapter: "Service", register };

function register(app: App, { services, bodies }: RouteContext): void {
  const { teams, sharedEvents } = services;
  const feed = new EventFeed();
  const unsubscribes = published(feed, services, bodies);
  const heartbeat = setInterval(() => feed.heartbeat(), heartbeatMs).unref();
  app.addHook("preClose", (done) => {
    clearInterval(heartbeat);
    for (const unsubscribe of unsubscribes) unsubscribe();
    feed.close();
    done();
  });
  const subscribe = async (teamId: string, lastId: string | undefined): Promise<Subscription> => {
    if (sharedEvents === undefined) return feed.subscribe(teamId, lastId);
    feed.requireRoom(teamId); // before what its client has missed is read
    return await sharedEvents.open(teamId, lastId, (opened) => {
      const subscription = feed.open(teamId, firstOf(opened, lastId, bodies));
      subscription.stream.once("close", opened.end);
      return subscription;
    });
  };

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
      const { stream, end } = await subscribe(identity.teamId, headers["last-event-id"]);
      stream.once("close", teams.onRevoked(identity.keyId, end));
      return reply
        .type(eventStreamType)
        .header("cache-control", "no-store")
        .header("x-accel-buffering", "no")
        .send(stream);
    },
  );
}

/** Gives the feed all changes; the returned functions end that. */
function published(feed: EventFeed, services: Services, bodies: CapsuleBodies): (() => void)[] {
  const { capsules, templates, sharedEvents } = services;
  if (sharedEvents !== undefined)
    return [sharedEvents.onChange((teamId, id, change) => feed.tell(teamId, eventOf(id, change, bodies)))];
  return [
    capsules.onChange((teamId, id, view) => {
      if (view === undefined) feed.publish(teamId, "capsule-removed", () => ({ id }));
      else feed.publish(teamId, "capsule", () => bodies.of(view));
    }),
    templates.onChange((teamId, name, view) => {
      if (view === undefined) feed.publish(teamId, "template-removed", () => ({ name }));
      else feed.publish(teamId, "template", () => templateBody(view));
    }),
  ];
}

function eventOf(id: string, change: SharedChange, bodies: CapsuleBodies): SharedEvent {
  switch (change.kind) {
    case "capsule":
      return { id, name: change.kind, data: bodies.of(change.view) };
    case "template":
      return { id, name: change.kind, data: templateBody(change.view) };
    case "capsule-removed":
      return { id, name: change.kind, data: { id: change.id } };
    case "template-removed":
      return { id, name: change.kind, data: { name: change.name } };
    case "reset":
      return resetEvent(id, "missed");
  }
}

function firstOf({ id, missed }: Opened, lastId: string | undefined, bodies: CapsuleBodies): SharedEvent[] {
  if (missed !== undefined) return missed.map((each) => eventOf(each.id, each.change, bodies));
  return [resetEvent(id, lastId === undefined ? "new" : "missed")];
}

function resetEvent(id: string, reason: "new" | "missed"): SharedEvent {
  return { id, name: "reset", data: { reason } };
}
