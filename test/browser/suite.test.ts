/** One process for the whole group, so that there is one server and one browser. */
import "./sign-in.ts";
import "./keys.ts";
import "./dialogs.ts";
import "./capsules.ts";
import "./bulk.ts";
import "./terminals.ts";
import "./files.ts";
import "./watching.ts";
import "./network.ts";
import "./plots.ts";
import "./reference.ts";
import "./looks.ts";
