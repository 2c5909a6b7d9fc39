/**
 * Live events on the wire, as the text/event-stream of the HTML standard. Whoever hears `reset` lists again; every
 * event after it tells of one thing that changed since.
 */
import Type from "typebox";
import { Capsule } from "./capsule.ts";
import { Template } from "./template.ts";

export const eventStreamType = "text/event-stream";

/** The data of each event, by its name. */
export const eventData = {
  reset: Type.Object(
    {
      reason: Type.Unsafe<"new" | "missed">({
        type: "string",
        enum: ["new", "missed"],
        description: "new: this stream begins here; missed: what came after Last-Event-ID is not known any more.",
      }),
    },
    { title: "ResetEvent" },
  ),
  capsule: Capsule,
  "capsule-removed": Type.Object({ id: Type.String() }, { title: "CapsuleRemovedEvent" }),
  template: Template,
  "template-removed": Type.Object({ name: Type.String() }, { title: "TemplateRemovedEvent" }),
};

export type EventName = keyof typeof eventData;

export const EventStreamHeaders = Type.Object({
  "last-event-id": Type.Optional(Type.String({ description: "The id of the last event heard: go on after it." })),
});
