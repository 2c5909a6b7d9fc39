/** What every answer above 399 says, whoever refused: a service, a route, the framework or the HTTP parser. */
import Type, { type Static } from "typebox";
import { type ErrorCode, statusOf } from "./errors.ts";

export const ErrorBody = Type.Object(
  {
    error: Type.Object({
      code: Type.String({ enum: Object.keys(statusOf), description: "Stable, for programs." }),
      message: Type.String({ description: "What could not be done to which thing; for people." }),
      details: Type.Optional(Type.Object({}, { additionalProperties: true })),
    }),
  },
  { title: "Error" },
);
export type ErrorBody = Static<typeof ErrorBody> & { error: { code: ErrorCode } };
