/** The capsule, as each of its connections sees it. */
import type { OperatorRules, Rules } from "../network/decision.ts";
import type { Noted } from "../network/recent-decisions.ts";
import type { AnsweredNames } from "./answered-names.ts";
import type { ByteBudget } from "./byte-budget.ts";
import type { Dialler } from "./dialler.ts";
import type { InflowShared } from "./inflow.ts";
import type { Names } from "./names.ts";

/** Everything that the connections of one capsule have in common. */
export interface ConnectionShared<Connection> extends InflowShared {
  rules: () => Rules;
  operator: () => OperatorRules;
  dialler: Dialler;
  names: Names;
  answered: AnsweredNames;
  /** Bytes to outside that their peers have not taken, beyond first windows. */
  windows: ByteBudget;
  note: (noted: Noted) => void;
  /** Its stream and its socket have ended. */
  released: (connection: Connection) => void;
}
