/**
 * A step: what a host tells of its releases says also whether the capsule was being moved (docs/adr/0055). A row that is raised would keep
 * the mark of an earlier release, or lack that of the last one.
 */
import { assertReleased, toldColumns } from "./put-back-releases.ts";

export const putBackMoves = assertReleased(
  "CREATE OR REPLACE FUNCTION",
  `${toldColumns}, moving = CASE WHEN r.moving THEN true END`,
);
