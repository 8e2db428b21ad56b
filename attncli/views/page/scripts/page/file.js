// A page from a file opens with the reports that are in it.

import { open } from "./page.js";
import { run } from "./show.js";

run(open());
