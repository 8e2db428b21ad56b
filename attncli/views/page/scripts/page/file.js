// Entry point of a page opened from a file: it shows the reports stored in it.

import { open } from "./page.js";
import { run } from "./show.js";

run(open());
