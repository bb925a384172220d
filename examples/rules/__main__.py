from backstay import ConfigurationError

try:
    from rules.commands import main
except ConfigurationError as error:  # of DATABASE_URL
    raise SystemExit(f"rules: {error}") from None

raise SystemExit(main())
