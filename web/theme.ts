/** Runs before anything is drawn, so that no page flashes up in the wrong colours. */
import { applyTheme, savedTheme } from "./state/theme.ts";

applyTheme(savedTheme());
