/** Runs before anything is drawn, so that no page flashes up in the wrong colours. */
import { keptTheme, showTheme } from "./state/theme.ts";

showTheme(keptTheme());
