-- All result tables; there are not many.
SELECT definition FROM holdfast.result_table ORDER BY name
