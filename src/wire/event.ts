/**
 * Live events on the wire, as the text/event-stream of the HTML standard. After `reset` a client lists again; each
 * later event is one change.
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
        description: "new: this stream begins here; missed: the events after Last-Event-ID are lost.",
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
