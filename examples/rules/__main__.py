from rules.commands import main

raise SystemExit(main())
